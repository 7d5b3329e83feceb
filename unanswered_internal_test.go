package redisdelay

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// losing has what the server answers get lost, or become an error of its own.
type losing struct {
	to   error // nil: nothing is lost
	sent bool  // what is lost was done
}

func (l *losing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *losing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if l.to == nil {
			return next(ctx, cmd)
		}
		if l.sent {
			_ = next(ctx, cmd)
		}
		cmd.SetErr(l.to)
		return l.to
	}
}

func (l *losing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if l.to == nil {
			return next(ctx, cmds)
		}
		if l.sent {
			_ = next(ctx, cmds)
		}
		for _, cmd := range cmds {
			cmd.SetErr(l.to)
		}
		return l.to
	}
}

// refusal is an error of the server.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// reaches has the subscription alone reach Redis through a hook.
func (s *subscription) reaches(t *testing.T, hook redis.Hook) {
	t.Helper()
	options := s.config.Client.(*redis.Client).Options()
	client := redis.NewClient(&redis.Options{Addr: options.Addr, ReadTimeout: options.ReadTimeout})
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.Ping(t.Context()).Err()) // connects, which hooks would see, too
	client.AddHook(hook)
	s.config.Client, s.client = client, queue.MustClient(client)
}

// exchanges has exchanges of run until n are done that Redis has answered.
func (s *subscription) exchanges(t *testing.T, n int) {
	t.Helper()
	for range n {
		x, _ := s.plan(time.Now())
		require.NotNil(t, x)
		require.True(t, s.perform(x))
	}
}

// inBuffer is the messages that wait to be handed out, by what they were published as.
func (s *subscription) inBuffer(t *testing.T) (uuids []string) {
	t.Helper()
	for _, m := range s.buffer.all() {
		msg, err := s.config.Unmarshaler.Unmarshal("t", []byte(m.Body))
		require.NoError(t, err)
		uuids = append(uuids, msg.UUID)
	}
	return uuids
}

// What was to go back and did not reach Redis comes before what a claim brings that is sent again without it.
func TestAClaimThatIsSentAgainDoesNotPassWhatWasToGoBack(t *testing.T) {
	for name, answer := range map[string]bool{"nothing reaches Redis": false, "the replies are lost": true} {
		t.Run(name, func(t *testing.T) {
			s, _ := notRunning(t, 1)
			s.address = "nobody|1"
			s.publishMessages(t, 5)
			claim := s.claim(&s.main, 2, 0, false)
			require.NoError(t, s.tell(&exchange{claims: []*queue.Claim{claim}}))
			require.Equal(t, []string{"1", "2"}, s.inBuffer(t))

			network := &losing{to: io.EOF}
			s.reaches(t, network)
			s.releaseBuffer()
			x := &exchange{settlements: s.settled}
			s.settled = settlements{}
			require.False(t, s.perform(x))
			network.sent = answer
			x = &exchange{settlements: s.settled, claims: []*queue.Claim{s.claim(&s.main, 2, 0, false)}}
			s.settled = settlements{}
			require.False(t, s.perform(x))

			network.to = nil
			x, _ = s.plan(time.Now())
			require.Equal(t, []*queue.Claim{s.main.claim}, x.claims)
			require.Empty(t, x.releases)
			require.True(t, s.perform(x))
			require.Empty(t, s.inBuffer(t), "they are to come after 1 and 2")
			s.woken = true
			s.exchanges(t, 1)
			for s.buffer.len() == 0 {
				s.woken = true
				s.exchanges(t, 1)
			}
			require.Equal(t, "1", s.inBuffer(t)[0])
		})
	}
}

// unanswered is a subscription whose claim was run, and had no answer. Nothing has one until network loses no more.
func unanswered(t *testing.T, maxInFlight int) (s *subscription, network *losing, now time.Time) {
	t.Helper()
	s, now = notRunning(t, maxInFlight)
	s.publishMessages(t, maxInFlight)
	network = &losing{to: io.EOF, sent: true}
	s.reaches(t, network)
	s.woken = true
	x, _ := s.plan(now)
	require.False(t, s.perform(x))
	return s, network, now
}

// Else the message in hand, which is nacked, would come behind what the claim has brought.
func TestNothingGoesBackBeforeARefusedClaimIsKnown(t *testing.T) {
	s, network, now := unanswered(t, 1)
	claim := s.main.claim
	for _, network.to = range []error{refusal("ERR refused"), refusal("BUSY Redis is busy"), io.EOF} {
		network.sent = false
		s.settled.nacks = []queue.Failure{{Leased: &queue.Leased{}}}
		x, _ := s.plan(now)
		require.Equal(t, []*queue.Claim{claim}, x.claims)
		require.Empty(t, x.nacks)
		require.False(t, s.perform(x))
	}
}

// By a clock that began when the claim was sent again, they were kept longer.
func TestLeasesOfAClaimThatIsSentAgainBeganWithItsFirstRun(t *testing.T) {
	s, network, now := unanswered(t, 2)
	first := s.main.unanswered
	require.WithinRange(t, first, now, time.Now())
	x, _ := s.plan(now)
	require.False(t, s.perform(x))
	require.Equal(t, first, s.main.unanswered, "an attempt that failed, too, changes nothing")

	network.to = nil
	s.main.unanswered = first.Add(-s.config.LeaseDuration / 2)
	deadline := s.main.unanswered.Add(s.config.LeaseDuration)
	x, _ = s.plan(now)
	require.True(t, s.perform(x))
	require.False(t, s.main.isUnanswered())
	require.Equal(t, 2, s.buffer.len())
	for _, m := range s.buffer.all() {
		require.Equal(t, deadline, m.deadline)
	}
}

// Its leases are over by then, so nothing that it may have brought is handed out.
func TestAClaimThatIsRefusedForLongHoldsUpNothing(t *testing.T) {
	s, network, now := unanswered(t, 1)
	s.main.unanswered = now.Add(-s.config.LeaseDuration)
	network.to = refusal("NOPERM")
	x, _ := s.plan(now)
	require.False(t, s.perform(x))
	s.settled.nacks = []queue.Failure{{Leased: &queue.Leased{}}}
	x, _ = s.plan(now)
	require.Len(t, x.nacks, 1)
}

// The server still has what the claim brought, and answers its number with that. By our clock those leases are over.
func TestAClaimThatWasRefusedForLongBringsNoLeasesThatAreOver(t *testing.T) {
	s, network, now := unanswered(t, 1)
	s.main.unanswered = now.Add(-s.config.LeaseDuration)
	network.to, network.sent = refusal("NOPERM"), false
	x, _ := s.plan(now)
	require.False(t, s.perform(x))
	network.to = nil
	s.exchanges(t, 1)
	require.Empty(t, s.inBuffer(t))
}

// In the next exchange, not in a third of the lease.
func TestLeasesThatCouldNotBeExtendedAreAtOnce(t *testing.T) {
	s, _ := notRunning(t, 1)
	s.hold(1, false)
	s.nextExtend = time.Now()
	network := &losing{to: io.EOF}
	s.reaches(t, network)
	x, _ := s.plan(time.Now())
	require.Len(t, x.extend, 1)
	require.False(t, s.perform(x))
	x, _ = s.plan(time.Now())
	require.Len(t, x.extend, 1)
}

// A server that is busy, or a connection that was made anew and is refused, says nothing of an attempt of the client
// whose reply was lost.
func TestAClaimIsSentAgainWhereTheServerWasBusy(t *testing.T) {
	for _, err := range []refusal{"BUSY Redis is busy", "WRONGPASS invalid", "NOAUTH required"} {
		s, now := notRunning(t, 1)
		s.reaches(t, &losing{to: err})
		s.woken = true
		x, _ := s.plan(now)
		require.False(t, s.perform(x))
		require.True(t, s.main.isUnanswered(), err)
	}
}

// Where the answer took long, a third of the lease is over before run would extend it.
func TestLeasesThatWereLongOnTheirWayAreExtendedInTime(t *testing.T) {
	for name, lane := range map[string]func(*subscription) *lane{
		"run's": func(s *subscription) *lane { return &s.main },
		"ahead": func(s *subscription) *lane { return &s.ahead },
	} {
		t.Run(name, func(t *testing.T) {
			s, now := notRunning(t, 256)
			s.address = "nobody|1"
			s.publishMessages(t, 1)
			s.nextExtend = now.Add(s.config.LeaseDuration / 3)
			claim := s.claim(lane(s), 10, 0, false)
			call := s.group.ClaimCall(*claim)
			require.NoError(t, queue.Do(t.Context(), s.client, call))
			sent := now.Add(-s.config.LeaseDuration / 2)
			require.NoError(t, s.claimed(claim, call, sent))
			require.Equal(t, sent.Add(s.config.LeaseDuration/3), s.nextExtend)

			// That exchange is the first that may end too late, so the leases are watched meanwhile.
			x, _ := s.plan(now)
			require.Len(t, x.extend, 1)
			require.Equal(t, sent.Add(s.config.LeaseDuration+time.Millisecond), s.watchAt)
			require.True(t, s.perform(x))
			require.False(t, s.watched)
		})
	}
}

// loseLast has the reply to the last call of each pipeline get lost.
type loseLast struct{ losing }

func (*loseLast) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		_ = next(ctx, cmds)
		cmds[len(cmds)-1].SetErr(io.EOF)
		return io.EOF
	}
}

// Run waits for seconds then.
func TestWhatAnExchangeBroughtThatFailedIsWatched(t *testing.T) {
	s, mine, ahead := twoClaims(t)
	s.inHand = nil
	s.reaches(t, &loseLast{})
	require.False(t, s.perform(&exchange{claims: []*queue.Claim{mine.claims[0], ahead.claims[0]}}))
	require.True(t, s.ahead.isUnanswered())
	require.Equal(t, 100, s.buffer.len())
	require.True(t, s.watched)
	require.Equal(t, s.buffer.first().deadline.Add(time.Millisecond), s.watchAt)
}

// Its memory of a claim whose leases are over is there, too.
func TestRedisIsToForgetAClaimThatBroughtNothingAnyMore(t *testing.T) {
	s, _, ahead := twoClaims(t)
	network := &losing{to: io.EOF, sent: true}
	s.reaches(t, network)
	require.Error(t, s.tell(ahead))
	network.to = nil
	require.NoError(t, s.config.Client.Del(t.Context(), DefaultKeyPrefix+":{t}:leases:"+s.group.Name).Err())
	require.NoError(t, s.tell(&exchange{claims: []*queue.Claim{s.ahead.claim}}))
	require.Zero(t, s.buffer.len())
	require.True(t, s.ahead.remembered)
}

// However they came to be told together.
func TestMessagesGoBackInTheOrderOfTheirClaims(t *testing.T) {
	s, _ := notRunning(t, 4)
	s.address = "nobody|1"
	s.publishMessages(t, 4)
	s.claimAll(t)
	all := append([]leased{}, s.buffer.all()...)
	s.buffer = buffer{}
	for _, i := range []int{2, 3, 0, 1} {
		s.release(all[i : i+1])
	}
	x := &exchange{settlements: s.settled}
	s.settled = settlements{}
	require.True(t, s.perform(x))
	s.claimAll(t)
	require.Equal(t, []string{"1", "2", "3", "4"}, s.inBuffer(t))
}
