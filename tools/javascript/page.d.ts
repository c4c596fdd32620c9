// Shapes of what the server sends, for the type checker; web/feed.py and serve/queries/engine_view.py produce them.

/** A node of the map, from a row of the feed. */
interface PageNode {
  name: string;
  domains: string[];
  alloc: number[];
  used: number[];
  flags: number;
  priority: number | null;
  shares: Record<string, [number, number]>;
  leaving?: number;
}

interface PageGroup {
  parent: string;
  workload?: string;
  owner?: string;
  gang?: boolean;
  min?: number;
  known?: number;
  placed?: number;
  pending?: number;
  done?: number;
  topology?: string;
  priority?: number;
  reason?: string;
  pods?: [number, number];
  revision?: string; // of the workload, while groups of several exist
  ringCost?: number;
}

/** A pending unit of the queue. */
interface PageUnit {
  key: string;
  kind: string;
  namespace: string;
  name: string;
  priority: number;
  pods: number;
  of: number;
  placed: number;
  place: string;
  attempts: number;
  asked: number;
  tried: number;
  reason: string;
  words: string;
  headline: string;
  message: string;
  workload: string;
  owner: string;
}

interface PageQueue {
  roots: PageUnit[];
  total: number;
  pods: number;
  counts: Record<string, number>;
  oldest: number;
  by?: [string, number, number, number][];
}

/** What is different in the cluster that a what-if asks about. */
interface ClusterChange {
  addNodes: { count: number; like: string }[];
  withoutFilters: string[];
}
