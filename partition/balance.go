package partition

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// With SingleActive each partition has one active subscription, and the first Subscribe has them
// all. The members, which are the Subscribes of one group, spread them as follows.
//
// Each member looks now and then at all seats: which member is active in a partition, and which is
// first among those that stand by. From the same seats all members compute the same moves, from the
// member with the most partitions to that with the fewest, as long as the two differ by two. A
// member carries out its own moves, in partitions where the receiver is first. It ends its
// subscription there when the handlers at work are done, which wakes the first standby at once. It
// subscribes again, and stands by behind the others. No other partition notices.
//
// A move makes the sum of the squares of all counts smaller, so the moves end. At rest no two
// members differ by more than one. If the place of the first changed between the look and the move,
// another member gets the partition. It looks too, and gives it on.
//
// Rendezvous hashing would need no counts. But it spreads 12 partitions over 3 members as unevenly
// as chance, and the seats have to be read all the same. With counts the fewest partitions move.

// member is the first letters of the names of all subscriptions of one Subscribe.
func member(subscription string) string {
	return subscription[:min(len(subscription), memberLength)]
}

// memberLength leaves half of a name for the difference between the subscriptions of a member.
const memberLength = 8

// moves returns the partitions that a member gives up now. owners and nexts have a member for each
// partition, "" for none.
func moves(owners, nexts []string, me string) (gives []int) {
	count := map[string]int{}
	for i, owner := range owners {
		if owner == "" {
			return nil // a move is under way, and who gets the partition is not known
		}
		count[owner]++
		if next := nexts[i]; next != "" {
			count[next] += 0
		}
	}
	due := map[string]int{} // receiver -> partitions that it gets from this member
	for {
		most, least := "", ""
		for m, n := range count {
			if most == "" || n > count[most] || n == count[most] && m < most {
				most = m
			}
			if least == "" || n < count[least] || n == count[least] && m < least {
				least = m
			}
		}
		if count[most]-count[least] < 2 {
			break
		}
		count[most]--
		count[least]++
		if most == me {
			due[least]++
		}
	}
	for i, owner := range owners {
		if owner == me && due[nexts[i]] > 0 {
			due[nexts[i]]--
			gives = append(gives, i)
		}
	}
	return gives
}

// subscription is one Subscribe: a member.
type subscription struct {
	*Subscriber
	topic  string
	names  []string
	common *consume.Common
	ctx    context.Context // ends with Subscribe's, or when the Subscriber is closed
	cancel context.CancelFunc
	closed chan struct{} // closed after the consumer's channel

	looking sync.Mutex // held while the member looks

	mu    sync.Mutex
	parts []*part
}

// part is one partition of a member. subscription.mu guards the fields.
type part struct {
	leave  func() // ends the subscription when its handlers are done
	ended  <-chan struct{}
	leaves bool // leave was called, and the subscription is not renewed yet
}

func newSubscription(ctx context.Context, s *Subscriber, topic string, names []string) *subscription {
	ctx, cancel := context.WithCancel(ctx)
	return &subscription{
		Subscriber: s,
		topic:      topic,
		names:      names,
		common: &consume.Common{
			Member: queue.Token()[:memberLength],
			Out:    make(chan *message.Message),
			Budget: consume.NewBudget(s.maxInFlight),
		},
		ctx:    ctx,
		cancel: cancel,
		closed: make(chan struct{}),
	}
}

// begin subscribes to all partitions. After an error it is subscribed to those before.
func (s *subscription) begin() error {
	for _, name := range s.names {
		leave, ended, err := s.inside.SubscribeIn(s.ctx, name, s.common)
		if err != nil {
			return err
		}
		s.parts = append(s.parts, &part{leave: leave, ended: ended})
	}
	return nil
}

// run returns when all subscriptions have ended. renews tells to spread and renew them until then.
func (s *subscription) run(renews bool) {
	var parts, looks sync.WaitGroup
	for i := range s.parts {
		parts.Go(func() { s.keep(i) })
	}
	if renews && len(s.parts) > 1 {
		looks.Go(s.balance)
	}
	parts.Wait()
	s.cancel()
	looks.Wait()
	close(s.common.Out)
}

// keep returns when the subscription to a partition has ended for good.
func (s *subscription) keep(partition int) {
	p := s.parts[partition]
	for {
		s.mu.Lock()
		ended := p.ended
		s.mu.Unlock()
		<-ended
		s.mu.Lock()
		gives := p.leaves
		s.mu.Unlock()
		if !gives || !s.renew(partition) {
			return
		}
	}
}

// renew subscribes to a partition again. It returns false if the member ends.
func (s *subscription) renew(partition int) bool {
	fields := watermill.LogFields{"topic": s.names[partition]}
	for {
		leave, ended, err := s.inside.SubscribeIn(s.ctx, s.names[partition], s.common)
		switch {
		case err == nil:
			s.mu.Lock()
			*s.parts[partition] = part{leave: leave, ended: ended}
			s.mu.Unlock()
			return true
		case s.ctx.Err() != nil || errors.Is(err, redisdelay.ErrClosed):
			return false
		}
		s.logger.Error("Cannot stand by for a partition that another subscriber has taken over, will try again", err, fields)
		if !s.sleep(time.Second) {
			return false
		}
	}
}

// sleep returns false if the member ends.
func (s *subscription) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// balance looks each 5 to 10 seconds. Each look is one round trip to each node.
func (s *subscription) balance() {
	for s.sleep(5*time.Second + rand.N(5*time.Second)) {
		s.look()
	}
}

// look gives up what other members are to have.
func (s *subscription) look() {
	s.looking.Lock()
	defer s.looking.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	seats, err := s.inside.Seats(ctx, s.names)
	if err != nil {
		s.logger.Debug("Cannot see which subscriber is active in which partition, will look again",
			watermill.LogFields{"topic": s.topic, "err": err})
		return
	}
	owners, nexts := make([]string, len(seats)), make([]string, len(seats))
	for i, seat := range seats {
		owners[i], nexts[i] = member(seat.Owner), member(seat.Next)
	}
	for _, leave := range s.give(owners, nexts) {
		leave()
	}
}

// give returns how to end the subscriptions that the member gives up now.
func (s *subscription) give(owners, nexts []string) (leaves []func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.parts {
		if p.leaves && owners[i] == s.common.Member && nexts[i] != "" {
			owners[i] = nexts[i] // as soon as a handler is done
		}
	}
	for _, i := range moves(owners, nexts, s.common.Member) {
		s.parts[i].leaves = true
		leaves = append(leaves, s.parts[i].leave)
	}
	return leaves
}
