// OpenAPI's schemas, resolved as far as the form needs.
const follow = (spec, schema) => {
  let here = schema ?? {};
  while (here.$ref) {
    const { $ref, ...beside } = here;
    const keys = $ref.slice(2).split('/').map(key => key.replaceAll('~1', '/').replaceAll('~0', '~'));
    here = { ...keys.reduce((at, key) => at?.[key], spec), ...beside };
  }
  return here.allOf?.length === 1 ? { ...follow(spec, here.allOf[0]), ...here, allOf: undefined } : here;
};

/** Return a schema without references, with `nullable` where null is allowed. */
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

/** Return an operation's body: its `type`, JSON or else the first, `schema` and example; null without body. */
export const bodyOf = (spec, operation) => {
  const content = operation.requestBody?.content ?? {};
  const type = content['application/json'] ? 'application/json' : Object.keys(content)[0];
  return type ? { type, schema: {}, ...content[type] } : null;
};

/** Return the schema of what asks for a job of `kind`, without `kind` itself. */
export const jobShape = (spec, kind) => {
  const any = follow(spec, bodyOf(spec, spec.paths['/v1/jobs'].post).schema);
  const one = follow(spec, { $ref: any.discriminator.mapping[kind] }), { kind: _, ...properties } = one.properties;
  return { ...one, properties, required: (one.required ?? []).filter(name => name !== 'kind') };
};
