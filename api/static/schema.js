// OpenAPI's schemas, resolved as far as forms and docs need it.
const follow = (spec, schema) => {
  let here = schema ?? {};
  while (here.$ref) {
    const { $ref, ...beside } = here;
    here = { ...$ref.slice(2).split('/').reduce((at, key) => at?.[key.replaceAll('~1', '/').replaceAll('~0', '~')], spec), ...beside };
  }
  return here.allOf?.length === 1 ? { ...follow(spec, here.allOf[0]), ...here, allOf: undefined } : here;
};

/** One schema without its references, and whether null may stand for it. */
export const shape = (spec, schema) => {
  const here = follow(spec, schema);
  const options = (here.anyOf ?? here.oneOf)?.map(option => follow(spec, option));
  if (!options) return Array.isArray(here.type)
    ? { ...here, type: here.type.find(type => type !== 'null'), nullable: here.type.includes('null') }
    : 'const' in here ? { ...here, enum: [here.const] } : here;
  const real = options.filter(option => option.type !== 'null');
  if (real.length !== 1) return { ...here, variants: real };
  return { ...shape(spec, real[0]), ...here, anyOf: undefined, oneOf: undefined, nullable: real.length < options.length };
};

/** The body that an operation takes: `{type, schema}` of its JSON, else of what it has; or null. */
export const bodyOf = (spec, operation) => {
  const content = operation.requestBody?.content ?? {};
  const type = content['application/json'] ? 'application/json' : Object.keys(content)[0];
  return type ? { type, schema: content[type].schema ?? {} } : null;
};

const depth = 5;

/** A type in a few characters: `integer`, `string[]`, `Plan | null`. */
export const typeWords = (spec, schema) => {
  const here = shape(spec, schema);
  const name = schema?.$ref?.split('/').pop();
  const one = name ?? (here.enum ? here.enum.map(value => JSON.stringify(value)).join(' | ')
    : here.variants ? here.variants.map(option => option.title ?? option.type).join(' | ')
      : here.type === 'array' ? `${typeWords(spec, here.items ?? {})}[]` : here.type ?? 'any');
  return here.nullable ? `${one} | null` : one;
};

/** A value that has this schema, for examples: what it names as one, else its least. */
export const example = (spec, schema, level = 0) => {
  const here = shape(spec, schema);
  if (here.example !== undefined) return here.example;
  if (here.examples?.length) return here.examples[0];
  if (here.default !== undefined && here.default !== null) return here.default;
  if (here.enum) return here.enum[0];
  if (here.variants) return example(spec, here.variants[0], level + 1);
  if (level > depth) return null;
  if (here.type === 'object' || here.properties) {
    return Object.fromEntries(Object.entries(here.properties ?? {})
      .filter(([name]) => (here.required ?? []).includes(name) || level === 0)
      .map(([name, inner]) => [name, example(spec, inner, level + 1)]));
  }
  if (here.type === 'array') return here.minItems ? [example(spec, here.items, level + 1)] : [];
  return { integer: here.minimum ?? 1, number: here.minimum ?? 0, boolean: false, string: '' }[here.type] ?? null;
};
