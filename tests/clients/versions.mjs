// Tells which clients there are.

import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
for (const name of ['ioredis', 'redis']) {
  console.log(name, require(`${name}/package.json`).version);
}
