package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// link is how the subscription reaches Redis. Only Run uses the last fields, from failures on.
type link struct {
	ctx       context.Context // of all calls
	cancel    context.CancelFunc
	interrupt deadline // these are of closing
	giveUp    deadline
	end       *time.Timer
	saidLate  sync.Once
	rooms     [2][]Message // memory for the messages of a claim of each lane, while it is under way

	failures  int   // failed exchanges in a row
	fault     error // of the last exchange; nil: it did not fail
	groupGone bool  // the group was gone from Redis, and is not known to be back
}

// exchange carries out an exchange. It returns an error if any part of it failed.
func (s *Subscription) exchange(x *Exchange) error {
	a := Answer{Sent: time.Now()}
	group := s.group.Keeping(x.history)
	acks := group.AckCalls(x.Acks)
	drops := group.DropCalls(x.Drops)
	releases := s.group.ReleaseCalls(x.ReleasesInOrder(), x.refunds())
	nacks := group.NackCalls(x.Nacks)
	extends := s.group.ExtendCalls(x.Extend, s.LeaseDuration)
	if x.Worker != "" {
		s.group.Attend(extends[0], s.Name, x.Worker)
	}
	var claims []*queue.Call
	for _, c := range x.Claims {
		claims = append(claims, s.group.ClaimCall(*c))
	}
	// Nacks come after releases, since each puts its messages in front of ready, and nacked
	// messages are older. Claims come last, since settlements make room for more messages.
	err := queue.Do(s.link.ctx, s.Client, slices.Concat(acks, drops, releases, nacks, extends, claims)...)
	a.Came = time.Now()
	a.readAcked(acks)
	a.read(drops, FailedAcks)
	a.read(releases, FailedReleases)
	a.read(nacks, FailedNacks)
	err = cmp.Or(err, a.readLost(extends))
	for i := range x.Claims {
		err = cmp.Or(err, s.readClaim(x, i, claims[i], &a.Claims[i]))
	}
	if err != nil {
		a.Failed |= FailedOther
	}
	s.step(func(m *Machine, now time.Time) Effects {
		e := m.Answered(now, x, &a)
		for _, c := range x.Claims { // while no other goroutine can claim in the lane
			s.link.clear(s.lane(c))
		}
		return e
	})
	return err
}

// refunds reports whether tokens of the group's limit go back with what is released: not if a
// handler had any of it.
func (x *Exchange) refunds() bool {
	return x.limited && !slices.ContainsFunc(x.Releases, func(m Message) bool { return m.used })
}

// read notes that a part failed, if one of its calls did.
func (a *Answer) read(calls []*queue.Call, part Failed) {
	if slices.ContainsFunc(calls, func(c *queue.Call) bool { return c.Err() != nil }) {
		a.Failed |= part
	}
}

// readAcked adds up how many messages the acks settled. The answers to others may be lost: their
// repeats settle nothing, and nobody counts them.
func (a *Answer) readAcked(acks []*queue.Call) {
	for _, c := range acks {
		n, err := queue.ReadAcked(c)
		if err != nil {
			a.Failed |= FailedAcks
			continue
		}
		a.Acked += n
	}
}

// readLost reads which leases were lost.
func (a *Answer) readLost(extends []*queue.Call) error {
	for _, c := range extends {
		leases, err := queue.ReadLost(c)
		if err != nil {
			a.Failed |= FailedExtend
			return err
		}
		for _, lease := range leases {
			if a.Lost == nil {
				a.Lost = map[string]bool{}
			}
			a.Lost[lease] = true
		}
	}
	return nil
}

// readClaim reads what became of an exchange's claim. If the group is gone it registers the group
// again, which has to exist as long as somebody subscribes.
func (s *Subscription) readClaim(x *Exchange, i int, call *queue.Call, to *Claimed) error {
	c := x.Claims[i]
	lane := s.lane(c)
	room := &s.link.rooms[lane]
	var err error
	add := func(m queue.Leased) { *room = append(*room, Message{Leased: m}) }
	to.Claimed, err = c.ReadClaimTo(add, call)
	to.Messages = *room
	switch {
	case err == nil:
		to.Outcome = Ran
		if lane == 0 && s.link.groupGone { // another subscription has registered it
			s.groupIsBack()
		}
	case errors.Is(err, queue.ErrUnregistered):
		to.Outcome = GroupGone
		switch {
		case x.left:
			return nil
		case lane == 0:
			return s.registerAgain()
		case c.Limit == 0: // Redis was to forget the lane, and has
			return nil
		}
	case servers.Unreachable(err):
		to.Outcome = NoAnswer
	default:
		to.Outcome = Refused
	}
	return err
}

// lane returns 0 for a claim of the main lane, and 1 for one of the second.
func (s *Subscription) lane(c *queue.Claim) int {
	if c.Subscription == s.Name {
		return 0
	}
	return 1
}

// clear empties a lane's memory for messages, so that no body stays there. It lets go of large
// memory after a claim without messages, because not that many come soon.
func (l *link) clear(lane int) {
	room := l.rooms[lane]
	if len(room) == 0 && cap(room) > manyBrought {
		room = nil
	}
	clear(room)
	l.rooms[lane] = room[:0]
}

// registerAgain registers the group, because the server has lost its data.
func (s *Subscription) registerAgain() error {
	s.link.groupGone = true
	got, err := s.Topic.Join(s.link.ctx, s.group.Name, s.Common.GroupOptions(s.Options, false))
	if err != nil {
		return err
	}
	s.groupIsBack()
	LogRegistered(s.Logger, got, nil)
	return nil
}

// Register registers the group anew, after Common.Limit has changed.
func (s *Subscription) Register(ctx context.Context) error {
	if _, err := s.Topic.Join(ctx, s.group.Name, s.Common.GroupOptions(s.Options, false)); err != nil {
		return fmt.Errorf("register consumer group %q of topic %q: %w", s.group.Name, s.Topic.Name, err)
	}
	return nil
}

// groupIsBack logs, once for each loss, that the group was gone. It wakes all other receivers of
// the process: the sooner their groups are back, the less these miss.
func (s *Subscription) groupIsBack() {
	s.link.groupGone = false
	s.Logger.Error("The consumer group is gone from Redis, with all that it held; it is registered again", errGroupGone, nil)
	s.Mailbox.DataLost()
}

// runBeside carries out exchanges beside those of Run for as long as there is need for them.
func (s *Subscription) runBeside(x *Exchange) {
	for x != nil {
		_ = s.exchange(x) // Run repeats what failed
		s.step(func(m *Machine, now time.Time) Effects {
			x = m.PlanBeside(now)
			return Effects{}
		})
	}
	s.talk.send() // there may be less to claim than it seemed to Run, or something to repeat
}

// report logs the beginning and the end of an outage, once each.
func (s *Subscription) report(err error) {
	switch {
	case err == nil && s.link.failures > 0:
		s.link.failures, s.link.fault = 0, nil
		s.Logger.Info("Redis answers again", nil)
	case err != nil && s.link.ctx.Err() == nil:
		s.link.failures++
		s.link.fault = err
		if s.link.failures == 1 {
			s.Logger.Error("Redis does not answer as it should, trying again", err, nil)
		}
	}
}

// pause is how long to wait after a failure.
func (l *link) pause() time.Duration {
	return wake.Jitter(min(25*time.Millisecond<<min(l.failures, 10), 5*time.Second))
}
