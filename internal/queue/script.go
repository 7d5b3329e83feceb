package queue

import (
	"cmp"
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Call is one run of a script, to be sent alone or in a pipeline with others.
// Its typed results are read after Do.
type Call struct {
	script *Script
	keys   []string
	args   []any
	cmd    *redis.Cmd
}

// Err is the error of the call itself, nil before Do.
func (c *Call) Err() error {
	if c.cmd == nil {
		return nil
	}
	return c.cmd.Err()
}

// flag is a condition as scripts take it.
func flag(set bool) string {
	if set {
		return "1"
	}
	return "0"
}

func (c *Call) queue(ctx context.Context, p redis.Cmdable, full bool) {
	if full {
		c.cmd = p.Eval(ctx, c.script.source, c.keys, c.args...)
	} else {
		c.cmd = p.EvalSha(ctx, c.script.sha, c.keys, c.args...)
	}
}

// Do sends the calls in one round trip, in order, and returns the first error. One that says that the user may not run
// scripts wraps ErrForbidden.
//
// If the server lacks a script, all scripts are loaded on it, so that it has all or none, and calls
// in one pipeline keep their order. No other server is waited for. Those that failed for want of
// theirs are sent again. Of a user who may not load any, the server knows those that were sent
// whole, so that the order of a pipeline is not kept where it lacks some.
func Do(ctx context.Context, client *Client, calls ...*Call) error {
	send(ctx, client, calls, false)
	if missing := lacking(calls); len(missing) > 0 {
		loaded := loadFor(ctx, client, missing)
		send(ctx, client, missing, !loaded)
		missing = lacking(missing)
		if client.Cluster() && len(missing) > 0 { // a slot has another owner than the client knew
			loaded = loadAll(ctx, client)
			send(ctx, client, missing, !loaded)
			missing = lacking(missing)
		}
		if len(missing) > 0 { // it has lost them again
			send(ctx, client, missing, true)
		}
	}
	for _, c := range calls {
		if err := c.Err(); err != nil {
			client.findNodes(ctx, err)
			return c.forbidden(err)
		}
	}
	return nil
}

// lacking returns the calls whose script the server does not have.
func lacking(calls []*Call) []*Call {
	var missing []*Call
	for _, c := range calls {
		if redis.HasErrorPrefix(c.Err(), "NOSCRIPT") {
			missing = append(missing, c)
		}
	}
	return missing
}

// loadFor loads every script on the servers that have the keys of some calls: of a Cluster another node may hang, and
// is none of theirs. It returns false if that failed.
func loadFor(ctx context.Context, client *Client, calls []*Call) bool {
	if !client.Cluster() {
		return loadAll(ctx, client)
	}
	done := map[Node]bool{}
	for _, c := range calls {
		node, err := client.Node(ctx, c.keys[0])
		if err != nil || !done[node] && !loadAll(ctx, node) {
			return false
		}
		done[node] = true
	}
	return true
}

// loadAll loads every script on the server; with the client of a Cluster on all nodes that it knows, replicas too, and waits for
// each. It returns false if that failed.
func loadAll(ctx context.Context, client redis.Cmdable) bool {
	for _, s := range allScripts {
		if client.ScriptLoad(ctx, s.source).Err() != nil {
			return false
		}
	}
	return true
}

func send(ctx context.Context, client redis.Cmdable, calls []*Call, full bool) {
	if len(calls) == 1 {
		calls[0].queue(ctx, client, full)
		return
	}
	pipe := client.Pipeline()
	for _, c := range calls {
		c.queue(ctx, pipe, full)
	}
	_, err := pipe.Exec(ctx)
	for _, c := range calls {
		// Each has an error of its own, or should: where every attempt to connect is refused, go-redis gives the
		// commands none, and they would pass for done.
		if c.cmd.Err() == nil && c.cmd.Val() == nil {
			c.cmd.SetErr(cmp.Or(err, errNoReply))
		}
	}
}

// errNoReply means that the client has neither a reply nor an error for a call.
var errNoReply = errors.New("there is no reply")
