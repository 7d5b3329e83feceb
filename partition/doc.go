// Package partition makes one topic of several. A topic of Redis is on one node of a Redis Cluster.
// A partitioned topic spreads over all nodes, so it can do several times as much.
//
// A partitioned topic consists of plain topics, its partitions. Topics returns their names. Every
// tool that takes a topic takes each of them.
package partition
