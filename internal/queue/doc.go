// Package queue is the pipeline in Redis: keys, scripts, and a Go function for each transition. It
// decides nothing about time or order itself. A caller says when a transition runs, and the script
// does all of it in one step. Besides it, only packages wake and operate talk to Redis.
//
// The stored forms:
//
//   - keys.go has the name of every key and channel, and the version of the layout.
//   - id.go makes message IDs and random texts.
//   - options.go and record.go have the form of a message's own settings, and of its deliveries.
//
// Scripts, which are files in lua with snippets in lua/shared:
//
//   - scripts.go composes the text of each script and has the list of all.
//   - contract.go reads what the header of a Lua file declares. draft.go makes calls by these
//     names, and reply.go reads replies by them.
//   - script.go sends calls, alone or in a pipeline, and loads scripts that a server lacks.
//   - work.go lists the scripts and commands of each kind of work. permit.go tries them before the
//     work begins, so that no script fails in its middle for want of a permission.
//   - refused.go tells what the server's refusals mean: what a user lacks, which command is missing,
//     or that the server is full.
//   - errors.go and check.go have the errors, and say which names and prefixes can be used.
//
// Transitions:
//
//   - topic.go is the handle on a topic: it opens it, and keeps its set of groups.
//   - registry.go enters topics in the registry and reads it.
//   - publish.go takes messages in. replicas.go waits until replicas have them.
//   - claim.go leases messages. settle.go ends or extends leases.
//   - schedule.go promotes due messages, takes back expired leases, and purges dead letters.
//   - remove.go removes consumer groups.
//   - stream.go is what differs where due messages go into a Redis Stream.
//   - server.go finds the server of a topic, and says what the server tells about itself.
//   - client.go is the adapter of clients: what a client can do is asked once. All calls go through
//     it, because a panic in a client's hook is an error of the call.
//   - operators.go and remembered.go are what package operate needs of all this.
package queue
