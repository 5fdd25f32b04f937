// Numbers, vectors (arrays) and matrices (arrays of rows): pure functions, all in double precision.

/** Mulberry32: random numbers in [0, 1) from a seed; ictd.widgets draws the same in Python. */
export function mulberry32(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** The index that a number in [0, 1) draws from probabilities. */
export function categorical(probabilities, number) {
  let total = 0;
  for (let i = 0; i < probabilities.length; i++) {
    total += probabilities[i];
    if (number < total) return i;
  }
  return probabilities.findLastIndex((probability) => probability > 0);
}

export const sum = (x) => x.reduce((total, entry) => total + entry, 0);
export const mean = (x) => sum(x) / x.length;
export const dot = (x, y) => x.reduce((total, entry, i) => total + entry * y[i], 0);
export const maxAbs = (x) => x.reduce((most, entry) => Math.max(most, Math.abs(entry)), 0);
export const rms = (x) => Math.sqrt(mean(x.map((entry) => entry * entry)));
export const range = (count) => Array.from({ length: count }, (_, i) => i);
export const zeros = (count) => new Array(count).fill(0);
export const normalized = (x) => {
  const total = sum(x);
  return x.map((entry) => entry / total);
};

export const matrix = (rows, columns, entry) =>
  range(rows).map((i) => range(columns).map((j) => entry(i, j)));
export const identity = (size) => matrix(size, size, (i, j) => (i === j ? 1 : 0));
export const transpose = (a) => a[0].map((_, j) => a.map((row) => row[j]));
export const matvec = (a, x) => a.map((row) => dot(row, x));
export const matmul = (a, b) => {
  const columns = transpose(b);
  return a.map((row) => columns.map((column) => dot(row, column)));
};

/** Softmax of one row of scores; -Infinity weighs nothing, and a row of nothing else is 0. */
export function softmax(scores) {
  const most = Math.max(...scores);
  if (most === -Infinity) return zeros(scores.length);
  return normalized(scores.map((score) => Math.exp(score - most)));
}

/** Solve a x = b by elimination with row pivoting; b is a vector, or a matrix of right sides. */
export function solve(a, b) {
  const isVector = !Array.isArray(b[0]);
  const rows = a.map((row, i) => [...row, ...(isVector ? [b[i]] : b[i])]);
  const size = a.length;
  for (let k = 0; k < size; k++) {
    let pivot = k;
    for (let i = k + 1; i < size; i++) {
      if (Math.abs(rows[i][k]) > Math.abs(rows[pivot][k])) pivot = i;
    }
    [rows[k], rows[pivot]] = [rows[pivot], rows[k]];
    for (let i = k + 1; i < size; i++) {
      const factor = rows[i][k] / rows[k][k];
      for (let j = k; j < rows[i].length; j++) rows[i][j] -= factor * rows[k][j];
    }
  }
  for (let k = size - 1; k >= 0; k--) {
    for (let j = size; j < rows[k].length; j++) {
      for (let i = k + 1; i < size; i++) rows[k][j] -= rows[k][i] * rows[i][j];
      rows[k][j] /= rows[k][k];
    }
  }
  return rows.map((row) => (isVector ? row[size] : row.slice(size)));
}

/** The spectral radius by Gelfand's formula, lim ‖aᴺ‖^(1/N), squaring `a` up to N = 2⁵⁰. */
export function spectralRadius(a) {
  let power = a;
  let logarithm = 0; // of the radius so far
  for (let share = 1; share > 2 ** -50; share /= 2) {
    const size = Math.sqrt(sum(power.map((row) => dot(row, row))));
    if (size === 0) return 0;
    logarithm += share * Math.log(size);
    const scaled = power.map((row) => row.map((entry) => entry / size));
    power = matmul(scaled, scaled);
  }
  return Math.exp(logarithm);
}
