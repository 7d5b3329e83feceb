// Package queue is the pipeline in Redis: keys, scripts, and a Go function for each transition. It
// decides nothing about time or order itself. A caller says when a transition runs, and the script
// does all of it in one step. Package servers sends the calls. Package rights tries them before.
//
// The stored forms:
//
//   - keys.go has the name of every key and channel, and the version of the layout.
//   - id.go makes message IDs and random texts.
//   - options.go and record.go have the form of a message's own settings, and of its deliveries.
//
// Scripts, which are files in lua with snippets in lua/shared, and phases of claim in lua/claim:
//
//   - scripts.go composes the text of each script and has the list of all.
//   - contract.go reads what the header of a Lua file declares. draft.go makes calls by these
//     names, and reply.go reads replies by them.
//   - script.go has a call of a script, and its errors. wrong_type.go names the key of a wrong type.
//   - commands.go tells which commands scripts call.
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
//   - operators.go and remembered.go are what other packages need of all this.
package queue
