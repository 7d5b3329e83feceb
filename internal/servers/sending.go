package servers

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/guard"
)

// Call is one run of a script. Send sends it, alone or in a pipeline with others.
type Call interface {
	// Key returns a key of the call, by which its node is found.
	Key() string
	// Queue sends the call, or puts it in a pipeline. If full, it sends the script's whole text.
	Queue(ctx context.Context, p redis.Cmdable, full bool) *redis.Cmd
	// SetCmd takes the command that was sent, with its reply or error.
	SetCmd(*redis.Cmd)
	// Err returns the error of that command.
	Err() error
}

// Send sends the calls in one round trip, in order on each node. It leaves each reply or error in
// its call.
//
// If a server lacks a script, Send loads all scripts on it and sends the failed calls again. So a
// server has all scripts or none, and the calls of a pipeline keep their order. Send does not wait
// for other servers. If the user may not load scripts, it sends the failed calls with the text of
// their scripts. A server may then have some scripts only, and a pipeline may lose its order.
func Send[C Call](ctx context.Context, client *Client, calls []C, load Load) {
	sendOnce(ctx, client, calls, false)
	if missing := lacking(calls); len(missing) > 0 {
		loaded := loadFor(ctx, client, missing, load)
		sendOnce(ctx, client, missing, !loaded)
		missing = lacking(missing)
		if client.Cluster() && len(missing) > 0 { // a slot has another owner than the client knew
			client.reload(ctx)
			loaded = sleep(ctx, readsSlots) && loadFor(ctx, client, missing, load)
			sendOnce(ctx, client, missing, !loaded)
			missing = lacking(missing)
		}
		if len(missing) > 0 { // the server has lost them again
			sendOnce(ctx, client, missing, true)
		}
	}
}

// Load loads every script on a server.
type Load func(context.Context, redis.UniversalClient) error

// lacking returns the calls whose script the server does not have.
func lacking[C Call](calls []C) []C {
	var missing []C
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
func loadFor[C Call](ctx context.Context, client *Client, calls []C, load Load) bool {
	for _, its := range PerNode(ctx, client, calls, C.Key) {
		_, err := AskMaster(ctx, client, its[0].Key(), func(ctx context.Context, c redis.UniversalClient) (struct{}, error) {
			return struct{}{}, load(ctx, c)
		})
		if err != nil {
			return false
		}
	}
	return true
}

// sendOnce sends the calls once, or again if the node of a Cluster that has them is lost. Each has
// a reply or an error then. Nodes get their calls at the same time, so that one that hangs delays
// its own only.
func sendOnce[C Call](ctx context.Context, client *Client, calls []C, full bool) {
	var sending sync.WaitGroup
	parts := PerNode(ctx, client, calls, C.Key)
	for _, its := range parts[1:] {
		sending.Go(func() { sendTogether(ctx, client, its, full) })
	}
	sendTogether(ctx, client, parts[0], full) // most often there are no others
	sending.Wait()
}

// sendTogether sends calls of one node. After a panic all have that error. It sends calls again
// that an heir has refused because another node has their keys.
func sendTogether[C Call](ctx context.Context, client *Client, calls []C, full bool) {
	type replies struct {
		cmds     []*redis.Cmd
		panicked error
		by       route
	}
	for began := time.Now(); len(calls) > 0; {
		sent := calls
		got, err := onMaster(ctx, client, sent[0].Key(), func(ctx context.Context, to route) (r replies) {
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
				c.SetCmd(got.cmds[i])
			} else {
				cmd := redis.NewCmd(ctx)
				cmd.SetErr(err)
				c.SetCmd(cmd)
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
func exec[C Call](ctx context.Context, user redis.UniversalClient, calls []C, full bool) (cmds []*redis.Cmd, panicked error) {
	defer guard.Recover(&panicked, calling)
	cmds = make([]*redis.Cmd, len(calls))
	var err error
	if len(calls) == 1 {
		cmds[0] = calls[0].Queue(ctx, user, full)
	} else {
		pipe := user.Pipeline()
		for i, c := range calls {
			cmds[i] = c.Queue(ctx, pipe, full)
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
