package faulttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// wire is a hook of a worker's client that records calls to Redis and their answers in the journal.
// They show leases and settlements, which no API does. It does not see the repeats of go-redis
// separately.
type wire struct {
	journal *Journal
	clock   func() int64 // the server's time in µs, on a separate connection; 0: no answer
	tamper  tamper       // the deliberate faults of the worker
	tokens  *tokens
	calls   atomic.Int64
}

// scriptCall is an EVALSHA of one of the project's scripts.
type scriptCall struct {
	redis.Cmder
	number int
	script string
	keys   []string
	args   []string // not of publish
}

// read returns the call of a script about leases, or nil for other commands.
func (w *wire) read(cmd redis.Cmder) *scriptCall {
	all := cmd.Args()
	if len(all) < 3 || all[0] != "evalsha" && all[0] != "eval" {
		return nil
	}
	name := queue.ScriptName(textOf(all[1]))
	switch name {
	case "claim", "ack", "nack", "release", "extend":
	default:
		return nil
	}
	n, err := strconv.Atoi(textOf(all[2]))
	if err != nil || len(all) < 3+n {
		return nil
	}
	c := &scriptCall{Cmder: cmd, number: int(w.calls.Add(1)), script: name}
	for _, key := range all[3 : 3+n] {
		c.keys = append(c.keys, textOf(key))
	}
	for _, arg := range all[3+n:] {
		c.args = append(c.args, textOf(arg))
	}
	return c
}

func textOf(arg any) string {
	switch arg := arg.(type) {
	case string:
		return arg
	case *string:
		return *arg
	case []byte:
		return string(arg)
	default:
		return fmt.Sprint(arg)
	}
}

// about returns topic and group, from the key of the leases.
func (c *scriptCall) about() (topic, group string) {
	for _, key := range c.keys {
		_, tagged, _ := strings.Cut(key, ":{")
		if topic, rest, ok := strings.Cut(tagged, "}:"); ok {
			if group, ok := strings.CutPrefix(rest, "leases:"); ok {
				return topic, group
			}
		}
	}
	return "", ""
}

// The arguments of a nack's messages: where the first one begins, and how many each has.
const nackFirst, nackStep = 3, 7

// leases returns the IDs and tokens in the call.
func (c *scriptCall) leases() (ids, tokens []string) {
	first, step := 2, 2
	switch c.script {
	case "ack": // how many tokens, each with a number of messages, and the ids of all
		parts, _ := strconv.Atoi(c.args[4])
		ids = c.args[5+2*parts:]
		for part := range slices.Chunk(c.args[5:5+2*parts], 2) {
			n, _ := strconv.Atoi(part[1])
			tokens = append(tokens, slices.Repeat(part[:1], n)...)
		}
		return ids, tokens
	case "nack":
		first, step = nackFirst, nackStep
	case "extend":
		first = 3
	}
	for i := first; i+1 < len(c.args); i += step {
		ids, tokens = append(ids, c.args[i]), append(tokens, c.args[i+1])
	}
	return ids, tokens
}

func (w *wire) before(c *scriptCall) {
	topic, group := c.about()
	base := Event{Call: c.number, Topic: topic, Group: group, Script: c.script}
	if c.script == "claim" {
		base.Kind, base.Token = Ask, c.args[1]+":"+c.args[2]
		base.Lease, _ = strconv.ParseInt(c.args[5], 10, 64)
		w.journal.Write(base)
		return
	}
	base.Kind = Settle
	if c.script == "extend" {
		base.Kind, base.Redis = Extend, w.clock()
		base.Lease, _ = strconv.ParseInt(c.args[0], 10, 64)
	}
	w.journal.Write(c.events(base)...)
}

// events returns an event for each message of the call.
func (c *scriptCall) events(base Event) (events []Event) {
	ids, tokens := c.leases()
	for i, id := range ids {
		e := base
		e.ID, e.Token, e.Of = id, tokens[i], len(ids)
		if c.script == "nack" {
			e.Delay = -1 // a dead letter, or an instant instead of a delay
			switch said := c.args[nackFirst+nackStep*i+2]; said {
			case "asked":
				e.Outcome = "dead"
			case "late", "unmarshal":
				e.Outcome = "undelivered"
			default:
				if ms, err := strconv.ParseInt(said, 10, 64); err == nil {
					e.Delay = ms
				}
			}
		}
		events = append(events, e)
	}
	return events
}

// after records the end of a call. failed is the error of the whole pipeline, because go-redis sets
// no error on its commands if no connection can be made.
func (w *wire) after(c *scriptCall, sent time.Time, tries int, failed error) {
	topic, group := c.about()
	base := Event{Call: c.number, Topic: topic, Group: group, Script: c.script, Sent: sent.UnixNano(), Tries: tries}
	cmd, _ := c.Cmder.(*redis.Cmd)
	err := c.Err()
	if err == nil && cmd.Val() == nil {
		err = failed
	}
	switch {
	case c.script == "claim":
		w.answer(c, cmd, base, err)
	case err != nil:
		base.Kind, base.Err = Unsure, errorText(err)
		if tries == 1 && serverSaid(base.Err) { // otherwise an earlier try may have succeeded
			base.Kind = Refused
		}
		w.journal.Write(c.events(base)...)
	case c.script == "extend":
		w.extended(c, cmd, base)
	default:
		base.Kind = Settled
		base.Count, _ = cmd.Int()
		w.journal.Write(c.events(base)...)
	}
}

func (w *wire) extended(c *scriptCall, cmd *redis.Cmd, base Event) {
	lost := map[string]bool{}
	leases, _ := cmd.StringSlice()
	for _, lease := range leases {
		lost[lease] = true
	}
	base.Lease, _ = strconv.ParseInt(c.args[0], 10, 64)
	events := c.events(base)
	for i := range events {
		events[i].Kind = Extended
		if of := (&queue.Leased{ID: events[i].ID, Token: events[i].Token}); lost[of.Lease()] {
			events[i].Kind = Lost
		}
	}
	w.journal.Write(events...)
}

func (w *wire) answer(c *scriptCall, cmd *redis.Cmd, base Event, err error) {
	answer := base
	answer.Kind, answer.Err = Answer, errorText(err)
	events := []Event{}
	if err == nil {
		claim := queue.Claim{Subscription: c.args[1]}
		claim.Number, _ = strconv.ParseUint(c.args[2], 10, 64)
		claimed, readErr := claim.ReadClaim(cmd)
		if readErr != nil {
			answer.Err = readErr.Error()
		}
		base.Kind, base.Redis, base.Epoch = Claimed, claimed.Now.UnixMicro(), claimed.Epoch
		base.Lease, _ = strconv.ParseInt(c.args[5], 10, 64)
		most, _ := strconv.Atoi(c.args[12])
		for _, m := range claimed.Messages {
			e := base
			e.ID, e.Token, e.Due, e.Number = m.ID, m.Token, m.Due.UnixMilli(), m.Deliveries+1
			e.Expiries, e.Most = m.Expiries, most
			events = append(events, e)
			w.tokens.put(m.Body, m.Token)
		}
		answer.Count = len(claimed.Messages)
	}
	w.journal.Write(append(events, answer)...)
}

// errorText marks errors that are not from the server, after which the call may have taken effect.
func errorText(err error) string {
	var server redis.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &server):
		return "server: " + err.Error()
	default:
		return err.Error()
	}
}

// nodeWire is a wire of one node of a Cluster. It passes over what the wire of the whole client
// sees. That one does not see calls to a replica that has just taken over.
type nodeWire struct{ *wire }

func (w nodeWire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	seen := w.wire.ProcessHook(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		if ctx.Value(triesKey{}) != nil {
			return next(ctx, cmd)
		}
		return seen(ctx, cmd)
	}
}

func (w nodeWire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	seen := w.wire.ProcessPipelineHook(next)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if ctx.Value(triesKey{}) != nil {
			return next(ctx, cmds)
		}
		return seen(ctx, cmds)
	}
}

func (w *wire) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *wire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return w.pass(ctx, []redis.Cmder{cmd}, func(ctx context.Context) error { return next(ctx, cmd) })
	}
}

func (w *wire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return w.pass(ctx, cmds, func(ctx context.Context) error { return next(ctx, cmds) })
	}
}

func (w *wire) pass(ctx context.Context, cmds []redis.Cmder, send func(context.Context) error) error {
	var calls []*scriptCall
	for _, cmd := range cmds {
		if c := w.read(cmd); c != nil {
			calls = append(calls, c)
			w.before(c)
		}
	}
	done := w.tamper.with(cmds)
	sent, n := time.Now(), count{cmds: cmds}
	err := send(countTries(ctx, &n))
	done()
	if all, ok := ctx.Value(triesKey{}).(*count); ok {
		all.tries.Store(max(all.tries.Load(), n.tries.Load()))
	}
	for _, c := range calls {
		w.after(c, sent, int(n.tries.Load()), err)
	}
	return err
}
