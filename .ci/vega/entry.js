// What static/charts.js imports. Transforms are registered by name: those of our charts, and those that Vega itself
// builds axes, scales and marks from.
import { transforms } from "vega-dataflow";
import { axisticks, datajoin, encode, scale, sortitems, stack } from "vega-encode";
import {
  aggregate, collect, compare, expression, extent, facet, field, filter, formula, key, multiextent, multivalues,
  params, prefacet, proxy, relay, sieve, subflow, tupleindex, values,
} from "vega-transforms";
import { bound, mark, overlap, render, viewlayout } from "vega-view-transforms";
import { voronoi } from "vega-voronoi";

Object.assign(transforms, {
  aggregate, axisticks, bound, collect, compare, datajoin, encode, expression, extent, facet, field, filter, formula,
  key, mark, multiextent, multivalues, overlap, params, prefacet, proxy, relay, render, scale, sieve, sortitems,
  stack, subflow, tupleindex, values, viewlayout, voronoi,
});

export { expressionInterpreter } from "vega-interpreter";
export { parse } from "vega-parser";
export { View } from "vega-view";
