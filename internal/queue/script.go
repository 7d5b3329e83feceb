package queue

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
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

// Key returns a key of the call, by which its node is found. A script without keys may run on any.
func (c *Call) Key() string {
	if len(c.keys) == 0 {
		return ""
	}
	return c.keys[0]
}

// Failure is Err, but the error wraps ErrForbidden or ErrServerFull as that of Do does.
func (c *Call) Failure() error {
	if err := c.Err(); err != nil {
		return refusal.OfScript(err, func() []string { return Commands(c.script.name) }, c.keys)
	}
	return nil
}

// Queue sends the call, or puts it in a pipeline. If full, it sends the script's whole text.
func (c *Call) Queue(ctx context.Context, p redis.Cmdable, full bool) *redis.Cmd {
	if full {
		return p.Eval(ctx, c.script.source, c.keys, c.args...)
	}
	return p.EvalSha(ctx, c.script.sha, c.keys, c.args...)
}

// Do sends the calls as servers.Send does, and returns the first error. The error wraps
// refusal.ErrForbidden if the server refuses a script or a command of it, or refusal.ErrServerFull.
// If a key of a call has a wrong type, the call's error names it.
func Do(ctx context.Context, client *servers.Client, calls ...*Call) error {
	if err := faulty(ctx, calls); err != nil {
		return err
	}
	servers.Send(ctx, client, calls, loadScripts)
	for _, c := range calls {
		if err := c.Err(); wrongType(err) {
			c.cmd.SetErr(NameWrongType(ctx, client, c.keys, err))
		}
	}
	for _, c := range calls {
		if err := c.Err(); err != nil {
			client.FindNodes(ctx, err)
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

// loadScripts loads every script on a server, in two round trips: the first shows whether the user
// may load scripts.
func loadScripts(ctx context.Context, c redis.UniversalClient) error {
	if err := c.ScriptLoad(ctx, allScripts[0].source).Err(); err != nil {
		return err
	}
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, s := range allScripts[1:] {
			p.ScriptLoad(ctx, s.source)
		}
		return nil
	})
	return err
}
