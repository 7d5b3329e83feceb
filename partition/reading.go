package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// reading is one Subscribe: its subscriptions to the partitions. First Subscribe changes it, then
// run does.
type reading struct {
	s      *Subscriber
	topic  string
	common *consume.Common
	ctx    context.Context // ends with Subscribe's, or at the end of the Subscriber's Close
	cancel context.CancelFunc
	parts  []*part          // partition 0 first
	shares int              // number of shares into which the limit is divided; 0: there is none
	passes passes           // members that did not take what they were given
	events chan func() bool // what run does next; false ends the reading
	closed chan struct{}    // closed after the consumer's channel
}

// part is the subscription to one partition.
type part struct {
	name   string
	sub    *consume.Subscription
	end    context.CancelFunc // ends it within CloseTimeout
	ended  <-chan struct{}
	leaves bool // it is given up, and subscribed to again when that is done
	waited bool // besides leaves: one that does not come holds the partition up only once

	receiver string // the member that it was given up for
}

func newReading(ctx context.Context, s *Subscriber, topic string) *reading {
	ctx, cancel := context.WithCancel(ctx)
	return &reading{
		s:     s,
		topic: topic,
		common: &consume.Common{
			Member: queue.Token()[:memberLength],
			Out:    make(chan *message.Message),
			Budget: consume.NewBudget(s.maxInFlight),
		},
		ctx:    ctx,
		cancel: cancel,
		passes: passes{},
		events: make(chan func() bool),
		closed: make(chan struct{}),
	}
}

// subscribe subscribes to the partition of p.
func (r *reading) subscribe(p *part) error {
	ctx, end := context.WithCancel(r.ctx)
	sub, ended, err := r.s.inside.SubscribeIn(ctx, p.name, r.common)
	if err != nil {
		end()
		return err
	}
	p.sub, p.end, p.ended, p.leaves, p.waited = sub, end, ended, false, false
	go func() {
		<-ended
		r.tell(p)
	}()
	return nil
}

// tell tells run that a subscription has ended. When run has returned, nobody needs to know.
func (r *reading) tell(p *part) {
	select {
	case r.events <- func() bool { return r.ended(p) }:
	case <-r.closed:
	}
}

// begin subscribes to the first plain topics.
func (r *reading) begin(names []string) error {
	err := r.divide(r.ctx, names)
	if err == nil {
		err = r.grow(names)
	} else {
		err = fmt.Errorf("subscribe to topic %q: %w", r.topic, err)
	}
	if err == nil && r.s.fixed == 0 && r.shares > 0 {
		r.followNumber() // it may have changed before the groups had their shares
	}
	return err
}

// grow subscribes to the plain topics that are not subscribed to yet.
func (r *reading) grow(names []string) error {
	for _, name := range names[min(len(r.parts), len(names)):] {
		p := &part{name: name}
		if err := r.subscribe(p); err != nil {
			return err
		}
		r.parts = append(r.parts, p)
	}
	return nil
}

// shrink ends the subscriptions behind the first n.
func (r *reading) shrink(n int) {
	gone := r.parts[n:]
	r.parts = r.parts[:n:n]
	for _, p := range gone {
		p.end()
	}
	for _, p := range gone {
		<-p.ended
	}
}

// end ends all subscriptions, and closes the consumer's channel.
func (r *reading) end() {
	r.cancel()
	for _, p := range r.parts {
		<-p.ended
		p.end()
	}
	close(r.common.Out)
	close(r.closed)
}

// run returns when a subscription has ended that was not given up: all end then. Until then it
// follows the number of partitions in Redis, and spreads active partitions over the members.
func (r *reading) run() {
	var follows, looks <-chan time.Time
	if r.s.fixed == 0 {
		t := time.NewTicker(r.s.follow)
		defer t.Stop()
		follows = t.C
	}
	spreads := r.s.inside.SingleActive()
	next := func() {
		if spreads {
			looks = time.After(r.s.look + rand.N(r.s.look))
		}
	}
	next()
	for {
		select {
		case <-r.ctx.Done():
			return
		case event := <-r.events:
			if !event() {
				return
			}
		case <-follows:
			r.followNumber()
		case <-looks:
			r.spread()
			next()
		}
	}
}

// ended takes in that a part's subscription has ended. It returns false if the reading ends.
func (r *reading) ended(p *part) bool {
	return !slices.Contains(r.parts, p) || // the topic has shrunk
		p.leaves && r.renew(p) // and others have taken over there
}

// renew subscribes to a partition again that was given up. It returns false if the reading ends.
func (r *reading) renew(p *part) bool {
	p.end()
	if p.receiver == "" { // it is known what became of it
	} else if seats, err := r.seats([]*part{p}); err == nil {
		switch seat := seats[0]; {
		case member(seat.Owner) == p.receiver:
			r.passes.took(p.receiver)
		case seat.Moves && !p.waited:
			p.waited = true
			time.AfterFunc(r.s.take, func() { r.tell(p) })
			return true
		case seat.Moves:
			lasts := r.passes.failed(p.receiver, time.Now(), 2*r.s.look)
			r.s.logger.Info("A subscriber has not taken the partition that it was given, and is passed over", watermill.LogFields{
				"topic": p.name, "subscriber": p.receiver, "for": lasts})
		}
	}
	p.receiver = ""
	if r.shares > 0 {
		r.followNumber() // an old share would be too much
		if !slices.Contains(r.parts, p) {
			return true
		}
	}
	err := r.subscribe(p)
	switch {
	case err == nil:
	case r.ctx.Err() != nil || errors.Is(err, redisdelay.ErrClosed):
		return false
	default:
		r.s.logger.Error("Cannot stand by for a partition that was given up, will try again", err, watermill.LogFields{"topic": p.name})
		time.AfterFunc(time.Second, func() { r.tell(p) })
	}
	return true
}

// followNumber takes in partitions that are new in Redis, or leaves those that are gone.
func (r *reading) followNumber() {
	ctx, cancel := context.WithTimeout(r.ctx, lookFor)
	defer cancel()
	names, err := r.s.partitions(ctx, r.topic)
	had, shares := len(r.parts), r.shares
	switch {
	case r.ctx.Err() != nil:
		return // the subscriptions end
	case err == nil && len(names) < had:
		r.shrink(len(names))
	}
	if err == nil {
		err = r.divide(ctx, names)
	}
	if err == nil {
		err = r.grow(names)
	}
	fields := watermill.LogFields{"topic": r.topic}
	switch {
	case err != nil && r.ctx.Err() == nil:
		r.s.logger.Error("Cannot follow the number of partitions, trying again", err, fields)
	case len(r.parts) != had:
		r.s.logger.Info("The number of partitions has changed", fields.Add(watermill.LogFields{"partitions": len(r.parts), "before": had}))
	}
	if err == nil && r.shares < shares {
		r.followNumber() // it may have grown since it was read, and then a raised share is too much
	}
}

const (
	// lookEvery is how long after a look the next one is at least. It is twice as long at most.
	lookEvery = 5 * time.Second

	// lookFor is how long a look may take.
	lookFor = 5 * time.Second

	// takeFor is how long a standby may take to become active, before the member that gave the
	// partition up may be it again. A standby far from Redis would always come too late.
	takeFor = time.Second
)

// seats looks at the seats of partitions.
func (r *reading) seats(parts []*part) ([]queue.Seat, error) {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	ctx, cancel := context.WithTimeout(r.ctx, lookFor)
	defer cancel()
	return r.s.inside.Seats(ctx, names)
}

// spread gives up what other members are to have. It makes one round trip to each node.
func (r *reading) spread() {
	if len(r.parts) < 2 {
		return
	}
	seats, err := r.seats(r.parts)
	if err != nil {
		if r.ctx.Err() == nil {
			r.s.logger.Error("Cannot see which subscriber is active in which partition, will look again", err, watermill.LogFields{"topic": r.topic})
		}
		return
	}
	owners, nexts := make([]string, len(seats)), make([]string, len(seats))
	for i, seat := range seats {
		owners[i], nexts[i] = member(seat.Owner), member(seat.Next)
	}
	for _, p := range r.give(owners, nexts) {
		r.s.logger.Info("Gives a partition up, for a subscriber that is active in fewer", watermill.LogFields{"topic": p.name})
		p.leaves = true
		p.sub.Leave() // when its handlers are done, however long they take
	}
}
