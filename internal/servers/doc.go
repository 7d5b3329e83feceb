// Package servers talks to Redis servers: clients, nodes, and the sending of calls. It knows keys
// only as what finds a node, and no topic.
//
//   - client.go is the adapter of clients: what a client can do is asked once. All calls go through
//     it, because a panic in a client's hook is an error of the call.
//   - sending.go sends calls of scripts, alone or in a pipeline, and loads scripts that a server
//     lacks.
//   - nodes.go asks a node of a Cluster for a sign of life, and finds its heir.
//   - reachable.go tells the errors of a server that did not answer from those of one that did.
//   - server.go has what a server tells about itself.
package servers
