package queue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/guard"
)

// Call is one run of a script. Do sends it, alone or in a pipeline with others.
type Call struct {
	script *Script
	keys   []string
	args   []any
	fault  error // the call was made in a wrong way
	cmd    *redis.Cmd
}

// Err returns the error of the call itself. It is nil before Do.
func (c *Call) Err() error {
	if c.cmd == nil {
		return nil
	}
	return c.cmd.Err()
}

// key returns a key of the call, by which its node is found. A script without keys may run on any.
func (c *Call) key() string {
	if len(c.keys) == 0 {
		return ""
	}
	return c.keys[0]
}

// Failure is Err, but the error wraps ErrForbidden or ErrServerFull as that of Do does.
func (c *Call) Failure() error {
	if err := c.Err(); err != nil {
		return c.refused(err)
	}
	return nil
}

func (c *Call) queue(ctx context.Context, p redis.Cmdable, full bool) *redis.Cmd {
	if full {
		return p.Eval(ctx, c.script.source, c.keys, c.args...)
	}
	return p.EvalSha(ctx, c.script.sha, c.keys, c.args...)
}

// Do sends the calls in one round trip, in order on each node, and returns the first error. The
// error wraps ErrForbidden if the server refuses a script or a command of it, or ErrServerFull.
//
// If a server lacks a script, Do loads all scripts on it and sends the failed calls again. So a
// server has all scripts or none, and the calls of a pipeline keep their order. Do does not wait
// for other servers. If the user may not load scripts, it sends the failed calls with the text of
// their scripts. A server may then have some scripts only, and a pipeline may lose its order.
//
// If a key of a call has a wrong type, the call's error names it.
func Do(ctx context.Context, client *Client, calls ...*Call) error {
	if err := faulty(ctx, calls); err != nil {
		return err
	}
	send(ctx, client, calls, false)
	if missing := lacking(calls); len(missing) > 0 {
		loaded := loadFor(ctx, client, missing)
		send(ctx, client, missing, !loaded)
		missing = lacking(missing)
		if client.Cluster() && len(missing) > 0 { // a slot has another owner than the client knew
			client.reload(ctx)
			loaded = sleep(ctx, readsSlots) && loadFor(ctx, client, missing)
			send(ctx, client, missing, !loaded)
			missing = lacking(missing)
		}
		if len(missing) > 0 { // the server has lost them again
			send(ctx, client, missing, true)
		}
	}
	for _, c := range calls {
		if err := c.Err(); wrongType(err) {
			c.cmd.SetErr(NameWrongType(ctx, client, c.keys, err))
		}
	}
	for _, c := range calls {
		if err := c.Err(); err != nil {
			client.findNodes(ctx, err)
			return c.Failure()
		}
	}
	return nil
}

// faulty returns the error of the first call that was made in a wrong way. All calls have it then,
// and none is sent.
func faulty(ctx context.Context, calls []*Call) error {
	wrong := slices.IndexFunc(calls, func(c *Call) bool { return c.fault != nil })
	if wrong < 0 {
		return nil
	}
	for _, c := range calls {
		c.cmd = redis.NewCmd(ctx)
		c.cmd.SetErr(calls[wrong].fault)
	}
	return calls[wrong].fault
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

// readsSlots is how long the client needs to read the slots of a Cluster that answers. It does not
// begin within 200 ms after the last time.
const readsSlots = 300 * time.Millisecond

// loadFor loads every script on the servers that have the keys of the calls, since other nodes of a
// Cluster may hang. It returns false if it failed.
func loadFor(ctx context.Context, client *Client, calls []*Call) bool {
	for _, its := range PerNode(ctx, client, calls, (*Call).key) {
		_, err := AskMaster(ctx, client, its[0].key(), func(ctx context.Context, c redis.UniversalClient) (all struct{}, err error) {
			for _, s := range allScripts {
				if err := c.ScriptLoad(ctx, s.source).Err(); err != nil {
					return all, err
				}
			}
			return all, nil
		})
		if err != nil {
			return false
		}
	}
	return true
}

// send sends the calls once, or again if the node of a Cluster that has them is lost. Each has a
// reply or an error then. Nodes get their calls at the same time, so that one that hangs delays its
// own only.
func send(ctx context.Context, client *Client, calls []*Call, full bool) {
	var sending sync.WaitGroup
	parts := PerNode(ctx, client, calls, (*Call).key)
	for _, its := range parts[1:] {
		sending.Go(func() { sendTogether(ctx, client, its, full) })
	}
	sendTogether(ctx, client, parts[0], full) // most often there are no others
	sending.Wait()
}

// sendTogether sends calls of one node. After a panic all have that error. It sends calls again
// that an heir has refused because another node has their keys.
func sendTogether(ctx context.Context, client *Client, calls []*Call, full bool) {
	type replies struct {
		cmds     []*redis.Cmd
		panicked error
		by       route
	}
	for began := time.Now(); len(calls) > 0; {
		sent := calls
		got, err := onMaster(ctx, client, sent[0].key(), func(ctx context.Context, to route) (r replies) {
			r.by = to
			r.cmds, r.panicked = exec(ctx, to.user, sent, full)
			return r
		})
		if err = cmp.Or(err, got.panicked); err == nil && len(got.cmds) != len(sent) {
			err = errNoReply
		}
		calls = nil
		for i, c := range sent {
			if err == nil {
				c.cmd = got.cmds[i]
			} else {
				c.cmd = redis.NewCmd(ctx)
				c.cmd.SetErr(err)
			}
			if got.by.heir && moved(c.Err()) {
				calls = append(calls, c)
			}
		}
		if len(calls) > 0 && !client.follow(ctx, got.by.node, began) {
			return
		}
	}
}

// exec returns the error of a panic, and leaves all other errors in the commands. It changes no
// call, because it may still run when the call was repeated.
func exec(ctx context.Context, user redis.UniversalClient, calls []*Call, full bool) (cmds []*redis.Cmd, panicked error) {
	defer guard.Recover(&panicked, calling)
	cmds = make([]*redis.Cmd, len(calls))
	var err error
	if len(calls) == 1 {
		cmds[0] = calls[0].queue(ctx, user, full)
	} else {
		pipe := user.Pipeline()
		for i, c := range calls {
			cmds[i] = c.queue(ctx, pipe, full)
		}
		_, err = pipe.Exec(ctx)
	}
	for _, cmd := range cmds {
		switch failed := cmd.Err(); {
		case failed != nil:
			cmd.SetErr(guard.Sound(failed))
		case len(calls) > 1 && cmd.Val() == nil: // a pipeline that cannot connect may set no error
			cmd.SetErr(cmp.Or(guard.Sound(err), errNoReply))
		}
	}
	return cmds, nil
}

// errNoReply means that the client has neither a reply nor an error for a call.
var errNoReply = errors.New("there is no reply")
