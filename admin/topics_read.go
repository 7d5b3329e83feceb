package admin

import (
	"context"
	"reflect"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// counts reads a plain topic.
func (a *Admin) counts(ctx context.Context, topic string) (operate.Counts, error) {
	t, err := a.topic(ctx, topic, rights.Counting)
	if err != nil {
		return operate.Counts{}, err
	}
	return t.Stats(ctx)
}

// stats is Stats for a plain topic.
func (a *Admin) stats(ctx context.Context, topic string) (Stats, error) {
	c, err := a.counts(ctx, topic)
	if err != nil {
		return Stats{}, err
	}
	return readStats(topic, c), nil
}

// readStats returns the Stats of a topic, or why it could not be read.
func readStats(topic string, c operate.Counts) Stats {
	if c.Err != nil {
		return Stats{Topic: topic, Err: c.Err}
	}
	s := Stats{Topic: topic, Now: c.Now, Messages: c.Number("messages"), Waiting: c.Number("waiting"), NextDue: c.Time("next_due"),
		DelayIDs: c.Number("delay_ids"), Scheduled: c.Holder() != "", NextLook: c.Time("next"), Pause: readPause("", c.Text("paused")),
		Stream: c.Stream, Recurs: c.Number("schedules") > 0}
	readCounters(reflect.ValueOf(&s.Counters).Elem(), "", c.Counter)
	s.FaultAt, s.Fault = c.Fault()
	for _, g := range c.Groups {
		s.Groups = append(s.Groups, readGroup(c, g))
	}
	return s
}

func readGroup(c operate.Counts, g operate.GroupCounts) GroupStats {
	options, active := g.Options(), g.Active()
	s := GroupStats{Group: g.Name, Ready: g.Number("ready"), InHand: g.Number("in_hand"), Retrying: g.Number("retrying"), Dead: g.Number("dead"),
		OldestDue: g.OldestDue(), NextRetry: g.Time("first_retry"), OldestDead: g.Time("first_death"), Suspects: g.Number("suspects"),
		SingleActive: options.SingleActive, Active: active.Subscription, Epoch: active.Epoch, Standby: g.Number("standbys"),
		Subscribed: g.Subscribed(), LastSeen: g.Seen(), LastSettled: g.Settled(), Pause: readPause(g.Name, g.Text("paused")), RemovedAt: g.Time("ends"),
		History: historyOf(options), Limit: limitOf(options), LimitedSince: g.LimitedSince(),
		MaxDeliveries: options.MaxDeliveries, DeadRetention: options.Retention, MaxDead: options.MaxDead, Lateness: Lateness{g.Lateness()}}
	readCounters(reflect.ValueOf(&s.Counters).Elem(), "", g.Counter)
	s.Counters.LimitedFor = g.LimitedFor(c.Now)
	s.Counters.Delivered = s.Lateness.Count()
	s.MaxLateness, s.MaxLatenessSince = g.Latest(c.Now)
	return s
}

// readCounters reads each counter of a struct from the field in Redis that has its name in JSON.
// The counters of a struct in it have the name of that before theirs, such as dead_late. A duration
// such as limited_for is read from limited_ms.
func readCounters(counters reflect.Value, before string, counter func(field string) int) {
	for i := range counters.NumField() {
		name := before + counters.Type().Field(i).Tag.Get("json")
		in := counters.Field(i)
		switch before, lasts := strings.CutSuffix(name, "_for"); {
		case in.Kind() == reflect.Struct:
			readCounters(in, name+"_", counter)
		case lasts:
			in.SetInt(int64(counter(before+"_ms")) * int64(time.Millisecond))
		default:
			in.SetInt(int64(counter(name)))
		}
	}
}

// readPause reads a pause of a group, or of the topic if group is "", as the stats script returns
// it. It returns nil for none.
func readPause(group, text string) *Pause {
	part := append(strings.SplitN(text, " ", 4), "", "", "")
	p := Pause{Group: group, Since: queue.Instant(part[1]), By: queue.DecodeName(part[2]), Why: part[3]}
	if until := queue.Instant(part[0]); until.UnixMilli() > 0 {
		p.Until = until
	}
	if p.Since.IsZero() {
		return nil
	}
	return &p
}
