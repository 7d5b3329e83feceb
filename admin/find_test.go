package admin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// inEachState publishes a message for each state to a topic with two groups. Group "a" has them in
// these states. The payload names the state.
func (s *setup) inEachState(t *testing.T, publisher message.Publisher, topic string, plain ...string) {
	t.Helper()
	held := make(chan *message.Message, 10)
	for _, name := range plain {
		require.NoError(t, s.subscriber(t, "b").SubscribeInitialize(name))
		messages := testkit.SubscribeTo(t, s.subscriber(t, "a", func(c *redisdelay.SubscriberConfig) {
			c.MaxInFlight, c.LeaseDuration, c.Backoff = 10, time.Hour, func(int) time.Duration { return time.Hour }
		}), name)
		go func() {
			for msg := range messages {
				switch {
				case strings.Contains(string(msg.Payload), "retrying"):
					msg.Nack()
				case strings.Contains(string(msg.Payload), "dead"):
					redisdelay.DeadOnNack(msg, errors.New("the partner is down"))
					msg.Nack()
				default:
					held <- msg
				}
			}
		}()
	}
	publish := func(state string, d time.Duration) {
		msg := message.NewMessage("uuid of "+state, message.Payload(`{"order":4711,"is":"`+state+`"}`))
		msg.Metadata = message.Metadata{"kind": "card " + state, partition.KeyMetadata: "customer " + state}
		redisdelay.SetDelayID(msg, "order 4711 "+state, redisdelay.DelayIDReplace)
		redisdelay.DelayFor(msg, d)
		require.NoError(t, publisher.Publish(topic, msg))
	}
	for _, state := range []string{"in_hand", "retrying", "dead"} {
		publish(state, 0)
	}
	receive(t, held)
	eventually(t, func() bool {
		stats, err := s.admin.Stats(ctx, topic)
		return err == nil && stats.Groups[0].Retrying == 1 && stats.Groups[0].Dead == 1
	}, "the states")
	for _, name := range plain {
		_, err := s.admin.Pause(ctx, name, admin.PauseOptions{Scope: admin.InGroup("a")})
		require.NoError(t, err)
	}
	publish("ready", 0)
	publish("waiting", time.Hour)
}

var allStates = []admin.State{admin.Waiting, admin.Ready, admin.InHand, admin.Retrying, admin.Dead}

// stateIn returns the state of a message in group "a".
func stateIn(m admin.Message) admin.State {
	for _, p := range m.Places {
		if p.Group == "a" || p.State == admin.Waiting {
			return p.State
		}
	}
	return admin.Unknown
}

// timeless returns a message without the due times of Ready, which only a list has.
func timeless(m admin.Message) admin.Message {
	m.Places = slices.Clone(m.Places)
	for i := range m.Places {
		if m.Places[i].State == admin.Ready {
			m.Places[i].At = time.Time{}
		}
	}
	return m
}

// checkFind looks for a message in each state by each handle.
func (s *setup) checkFind(t *testing.T, topics []string, plain []string) {
	t.Helper()
	for _, state := range allStates {
		is := string(state)
		found, err := s.admin.Find(ctx, admin.Search{Topics: topics, Filter: admin.Filter{DelayID: "order 4711 " + is}})
		require.NoError(t, err)
		require.Len(t, found.Messages, 1, is)
		m := found.Messages[0]
		require.Equal(t, state, stateIn(m), is)
		require.Contains(t, plain, m.Topic)
		require.Equal(t, "uuid of "+is, m.UUID)
		for name, filter := range map[string]admin.Filter{
			"ID":              {IDs: map[string]bool{m.ID: true}},
			"any ID":          {Any: m.ID},
			"UUID":            {UUID: m.UUID},
			"key":             {Key: "customer " + is},
			"metadata":        {Metadata: map[string]string{"kind": "card " + is}},
			"text":            {Text: `"is":"` + is},
			"any delay ID":    {Any: "order 4711 " + is},
			"any UUID":        {Any: "of " + is},
			"any key":         {Any: "customer " + is},
			"any pair":        {Any: "kind=card " + is},
			"any payload":     {Any: `is":"` + is},
			"several at once": {Metadata: map[string]string{"kind": "card " + is}, Text: "4711", DelayID: m.DelayID},
		} {
			found, err := s.admin.Find(ctx, admin.Search{Topics: topics, Filter: filter})
			require.NoError(t, err)
			require.Len(t, found.Messages, 1, "%s %s", is, name)
			require.Equal(t, timeless(m), timeless(found.Messages[0]), "%s %s", is, name)
			if strings.HasSuffix(name, "ID") && !strings.Contains(name, "UU") && !strings.Contains(name, "delay") {
				require.Equal(t, admin.SearchExact, found.Ended)
				require.Zero(t, found.Looked)
				continue
			}
			require.Equal(t, admin.SearchComplete, found.Ended)
			all := found.SearchedTotal()
			// Group "b" has all but the waiting one ready.
			require.Equal(t, []int{1, 5, 1, 1, 1, 9}, []int{all.Waiting, all.Ready, all.InHand, all.Retrying, all.Dead, found.Looked})
			require.Equal(t, 5, found.Of)
		}
	}
	found, err := s.admin.Find(ctx, admin.Search{Topics: topics, Filter: admin.Filter{Text: "4712"}})
	require.NoError(t, err)
	require.Empty(t, found.Messages)
	require.Equal(t, admin.SearchComplete, found.Ended)
}

func TestFindInEachStateByEachHandle(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.inEachState(t, s.publisher(t), topic, topic)
		s.checkFind(t, nil, []string{topic})
		s.checkFind(t, []string{topic}, []string{topic})
		_, err := s.admin.Find(ctx, admin.Search{Topics: []string{"unknown"}, Filter: admin.Filter{Any: "x"}})
		require.ErrorIs(t, err, admin.ErrNotFound)
		require.ErrorContains(t, err, `"unknown"`)
	})
}

func TestFindInAPartitionedTopic(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		plain, err := partition.Topics(topic, parts)
		require.NoError(t, err)
		publisher, err := partition.NewPublisher(partition.PublisherConfig{Partitions: parts,
			Publisher: redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, publisher.Close()) })
		s.inEachState(t, publisher, topic, plain...)
		s.checkFind(t, nil, plain)
		s.checkFind(t, []string{topic}, plain)
	})
}

// A search in small parts finds each message once, and reads no more than it may.
func TestFindGoesOnWhereItEnded(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		for _, name := range []string{"mails", topic, "bills"} {
			require.NoError(t, s.subscriber(t, "a").SubscribeInitialize(name))
			for i := range 7 {
				require.NoError(t, s.publisher(t).Publish(name, text(fmt.Sprintf("now %s %d", name, i)), delayed(fmt.Sprintf("later %s %d", name, i), time.Hour)))
			}
		}
		for _, q := range []admin.Search{{Limit: 1}, {Limit: 3}, {Most: 1}, {Most: 4}, {Limit: 2, Most: 5}, {Limit: 1000}} {
			q.Filter.Match = func(m admin.Message) bool { return !strings.Contains(string(m.Payload), " 3") }
			var ids []string
			looked := 0
			for {
				steps := 0
				q.Progress = func(p admin.SearchProgress) { steps++; require.Equal(t, 3, p.AllTopics) }
				found, err := s.admin.Find(ctx, q)
				require.NoError(t, err)
				if q.Limit > 0 {
					require.LessOrEqual(t, len(found.Messages), q.Limit)
				}
				if q.Most > 0 {
					require.LessOrEqual(t, found.Looked, q.Most)
				}
				for _, m := range found.Messages {
					ids = append(ids, m.ID)
				}
				looked += found.Looked
				left := slices.ContainsFunc(found.Topics, func(t admin.SearchedTopic) bool { return strings.Contains(t.LeftOut, "not reached") })
				require.Equal(t, found.Next != "", left, "what is left out is said")
				if q.Cursor = found.Next; q.Cursor == "" {
					require.Equal(t, admin.SearchComplete, found.Ended)
					break
				}
			}
			require.Equal(t, 3*2*7, looked)
			require.Len(t, ids, 3*2*6)
			slices.Sort(ids)
			require.Len(t, slices.Compact(ids), 3*2*6)
		}
	})
}

// A search that is stopped says what it found and where it goes on.
func TestFindStops(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	s := setupOn(t, redistest.Server{Client: client, Prefix: "own"})
	s.register(t, "a")
	for range 3 {
		require.NoError(t, s.publisher(t).Publish(topic, messagesOf(1000)...))
	}
	stopping, stop := context.WithCancel(ctx)
	q := admin.Search{Filter: admin.Filter{Any: "x"}, Progress: func(admin.SearchProgress) { stop() }, Limit: 1000}
	q.Filter.Match = func(m admin.Message) bool { return strings.HasSuffix(m.ID, "0") }
	found, err := s.admin.Find(stopping, q)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, admin.SearchStopped, found.Ended)
	require.Contains(t, found.Topics[0].LeftOut, "what was not reached: the search was stopped before")
	all := len(found.Messages)
	q.Cursor, q.Progress = found.Next, nil
	found, err = s.admin.Find(ctx, q)
	require.NoError(t, err)
	require.Equal(t, admin.SearchComplete, found.Ended)
	found, err = s.admin.Find(ctx, admin.Search{Filter: q.Filter, Limit: 1000})
	require.NoError(t, err)
	require.LessOrEqual(t, all, len(found.Messages))
	require.Equal(t, 3000, found.Looked)
}

// A search finds nothing that See takes away.
func TestFindSeesOnlyWhatItMay(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	s := setupOn(t, redistest.Server{Client: client, Prefix: "own"})
	s.register(t, "a")
	require.NoError(t, s.publisher(t).Publish(topic, text("secret"), text("plain")))
	see := func(m admin.Message) admin.Message {
		if string(m.Payload) == "secret" {
			m.Payload, m.UUID = nil, ""
		}
		return m
	}
	for payload, n := range map[string]int{"secret": 0, "plain": 1} {
		found, err := s.admin.Find(ctx, admin.Search{Filter: admin.Filter{Any: payload}, See: see})
		require.NoError(t, err)
		require.Len(t, found.Messages, n)
	}
}

func TestFindRefusesAWrongSearch(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	s := setupOn(t, redistest.Server{Client: client, Prefix: "own"})
	any := admin.Filter{Any: "x"}
	for _, q := range []admin.Search{{}, {Filter: any, Limit: -1}, {Filter: any, Limit: 1001}, {Filter: any, Most: -1}, {Filter: any, Cursor: "x"}, {Filter: any, Cursor: "t/asleep//"}, {Filter: any, Cursor: "/waiting//"}, {Filter: any, Cursor: "%/waiting//"}} {
		_, err := s.admin.Find(ctx, q)
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
	}
}
