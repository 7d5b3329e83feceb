package consume

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// link is how the subscription reaches Redis.
type link struct {
	ctx         context.Context // of all calls
	cancel      context.CancelFunc
	giveUp, end *time.Timer // of closing
	failures    int         // of exchanges in a row; Run's, as is all that follows
	fault       error       // of the last exchange; nil: it did not fail
	groupGone   bool        // from Redis, and not known to be back
	saidLate    sync.Once
	rooms       [2][]Message // memory for the messages of a claim of each lane; of who has the claim under way
}

// exchange carries out an exchange, and has the machine take in what became of it. It returns an error if any part failed.
func (s *Subscription) exchange(x *Exchange) error {
	a := Answer{Sent: time.Now()}
	acks := s.group.AckCalls(x.Acks)
	releases := s.group.ReleaseCalls(x.InOrder())
	nacks := s.group.NackCalls(x.Nacks, s.Options.Retention)
	extends := s.group.ExtendCalls(x.Extend, s.LeaseDuration)
	var claims []*queue.Call
	for _, c := range x.Claims {
		claims = append(claims, s.group.ClaimCall(*c))
	}
	// What goes to the front of ready goes last to first: nacked messages are older than those handed back. And what is settled
	// makes room before more is claimed.
	err := queue.Do(s.link.ctx, s.Client, slices.Concat(acks, releases, nacks, extends, claims)...)
	a.Came = time.Now()
	a.read(acks, FailedAcks)
	a.read(releases, FailedReleases)
	a.read(nacks, FailedNacks)
	a.readLost(extends)
	for i, c := range x.Claims {
		err = cmp.Or(err, s.readClaim(c, claims[i], &a.Claims[i]))
	}
	if err != nil {
		a.Failed |= FailedOther
	}
	s.mu.Lock()
	e := s.machine.Answered(time.Now(), x, &a)
	s.arm()
	s.mu.Unlock()
	for _, c := range x.Claims {
		s.link.clear(s.lane(c))
	}
	s.carryOut(&e)
	return err
}

// read notes whether any of some calls failed.
func (a *Answer) read(calls []*queue.Call, part Failed) {
	if slices.ContainsFunc(calls, func(c *queue.Call) bool { return c.Err() != nil }) {
		a.Failed |= part
	}
}

// readLost reads which leases were lost.
func (a *Answer) readLost(extends []*queue.Call) {
	for _, c := range extends {
		leases, err := queue.ReadLost(c)
		if err != nil {
			a.Failed |= FailedExtend
			return
		}
		for _, lease := range leases {
			if a.Lost == nil {
				a.Lost = map[string]bool{}
			}
			a.Lost[lease] = true
		}
	}
}

// readClaim reads what became of a claim. If the group is gone it is registered again, since it is to exist as long as somebody
// subscribes.
func (s *Subscription) readClaim(c *queue.Claim, call *queue.Call, to *Claimed) error {
	room := &s.link.rooms[s.lane(c)]
	var err error
	to.Claimed, err = c.ReadClaimTo(func(m queue.Leased) { *room = append(*room, Message{Leased: m}) }, call)
	to.Messages = *room
	isMain := c.Subscription == s.Name
	switch {
	case err == nil:
		to.Outcome = Ran
		if isMain && s.link.groupGone { // registering seemed to fail, or another subscription did it
			s.groupIsBack()
		}
		return nil
	case errors.Is(err, queue.ErrUnregistered):
		to.Outcome = GroupGone
		if isMain {
			return s.registerAgain()
		}
		if c.Limit == 0 { // it was to be forgotten
			return nil
		}
	case queue.Unreachable(err):
		to.Outcome = NoAnswer
	default:
		to.Outcome = Refused
	}
	return err
}

// lane is 0 for the main lane, and 1 for the other.
func (s *Subscription) lane(c *queue.Claim) int {
	if c.Subscription == s.Name {
		return 0
	}
	return 1
}

// clear makes room for the lane's next claim, without the bodies of the last one. If that brought nothing, no more than a few
// messages come soon.
func (l *link) clear(lane int) {
	room := l.rooms[lane]
	if len(room) == 0 && cap(room) > manyBrought {
		room = nil
	}
	clear(room)
	l.rooms[lane] = room[:0]
}

// registerAgain is called when the server has lost its data.
func (s *Subscription) registerAgain() error {
	s.link.groupGone = true
	if err := s.Topic.Register(s.link.ctx, s.group.Name, s.Options); err != nil {
		return err
	}
	s.groupIsBack()
	return nil
}

// groupIsBack says, once for each time, that the group was gone. It may never be back, as where a newer layout has taken the
// topic over.
func (s *Subscription) groupIsBack() {
	s.link.groupGone = false
	s.Logger.Error("The consumer group is gone from Redis, with all that it held; it is registered again", errGroupGone, nil)
	s.Mailbox.DataLost() // the sooner other groups are back, the less they miss
}

// runBeside has exchanges beside Run's for as long as there is need for them.
func (s *Subscription) runBeside(x *Exchange) {
	for x != nil {
		_ = s.exchange(x) // the machine knows, and Run repeats what failed
		s.mu.Lock()
		x = s.machine.PlanBeside(time.Now())
		s.mu.Unlock()
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
	return jitter(min(25*time.Millisecond<<min(l.failures, 10), 5*time.Second))
}
