package dashboard_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// named returns n names in order.
func named(format string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf(format, i))
	}
	return names
}

// waits publishes n messages that wait.
func (s *site) waits(topic string, n int) {
	s.t.Helper()
	var messages []*message.Message
	for range n {
		msg := message.NewMessage("", []byte("order 4711"))
		msg.Metadata.Set("kind", "gift")
		redisdelay.DelayFor(msg, time.Hour)
		messages = append(messages, msg)
	}
	require.NoError(s.t, testkit.NewPublisher(s.t, s.Server).Publish(topic, messages...))
}

// recurs gives each topic these schedules.
func (s *site) recurs(topics, schedules []string) {
	s.t.Helper()
	s.recur(daily(topics[0], schedules[0]))
	key := func(topic string) string { return queue.NewKeys(s.Prefix, topic).Schedules() }
	record := s.Client.HGet(ctx, key(topics[0]), schedules[0]).Val()
	_, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, topic := range topics {
			p.SAdd(ctx, queue.Registry(s.Prefix), topic)
			p.HSet(ctx, queue.NewKeys(s.Prefix, topic).Meta(), "layout", queue.Layout, "groups", "x")
			for _, name := range schedules {
				p.HSet(ctx, key(topic), name, record)
			}
		}
		return nil
	})
	require.NoError(s.t, err)
}

// stops is how the page says that a list has not all.
var stops = regexp.MustCompile(`[Tt]he first \d+|the oldest \d|Page 1 of|This page has|not shown|Others follow|older ones|next page goes on`)

// A list of the page that leaves something out says so, with numbers. One that has all does not.
func TestAListOfThePageThatStopsAtASizeSaysSo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n       int // so many are one more than the list has
		make    func(s *site, n int)
		address string
		says    string // if one is left out
		all     string // the page says if none is
	}{
		"dead letters examined for reasons": {1501, func(s *site, n int) {
			testkit.DeadLetters(s.t, s.Server, "orders", "g", make([]string, n)...)
		}, "/dead?t=orders&g=g", "1,501 dead letters of group g. The reasons are those of the oldest 1,500.", "1,500 dead letters of group g. "},
		"reasons": {1001, func(s *site, n int) {
			var reasons []string
			for i := range n {
				reasons = append(reasons, "order "+testkit.Letters(i))
			}
			testkit.DeadLetters(s.t, s.Server, "orders", "g", reasons...)
		}, "/dead?t=orders&g=g", "These are the first 1,000 reasons that were found. Dead letters of others: 1.", "1,000 dead letters of group g. "},
		"schedules of a topic": {101, func(s *site, n int) {
			s.recurs([]string{"reports"}, named("s-%04d", n))
		}, "/schedules?t=reports", "Page 1 of 2, with 100 of 101 schedules", ">s-0099</a>"},
		"schedules of a topic among others": {21, func(s *site, n int) {
			s.recurs([]string{"reports"}, named("s-%04d", n))
		}, "/schedules", "reports: the first 20 of 21 schedules.", ">s-0019</a>"},
		"topics with schedules": {201, func(s *site, n int) {
			s.recurs(named("t-%04d", n), []string{"s"})
		}, "/schedules", "Page 1 of 2, by the names of 201 topics", ">t-0199</a>"},
		"occurrences of a schedule": {11, func(s *site, n int) {
			one := daily("reports", "s")
			one.End = time.Now().Add(time.Duration(n) * 24 * time.Hour)
			s.recur(one)
		}, "/schedule?t=reports&s=s", "The next 10. Others follow.", "Upcoming"},
		"consumers": {201, func(s *site, n int) {
			testkit.Groups(s.t, s.Server, "orders", "g")
			testkit.Workers(s.t, s.Server, "orders", "g", n)
		}, "/topic?t=orders", "The first 200 of 201 consumers.", "process 200</span>"},
		"groups": {201, func(s *site, n int) {
			testkit.Groups(s.t, s.Server, "orders", named("g-%04d", n)...)
		}, "/topic?t=orders", "The first 200 of 201 groups.", `<th scope="row">g-0199 `},
		"topics": {51, func(s *site, n int) {
			s.many(named("t-%04d", n)...)
		}, "/?sort=name", "Page 1 of 2, with 50 of 51 topics", ">t-0049</a>"},
		"problems": {21, func(s *site, n int) {
			s.many(named("t-%04d", n)...)
		}, "/problems?kind=unread+group", "The first 20. 1 more are not shown. The tool has all: redisdelay doctor --kind=unread-group", "topic &#34;t-0019&#34;"},
		"ignored problems": {21, func(s *site, n int) {
			s.many(named("t-%04d", n)...)
			_, err := s.admin.Ignore(ctx, admin.Ignored{Kind: admin.UnreadGroup, By: "ann", Why: "they start in May"})
			require.NoError(s.t, err)
		}, "/problems?kind=unread+group", "The first 20. 1 more are not shown.", "20 problems ignored"},
		"changes": {51, func(s *site, n int) {
			for i := range n {
				require.NoError(s.t, s.admin.Record(ctx, admin.Act{By: "ann", Action: fmt.Sprint("act ", n-i)}))
			}
		}, "/audit", "The newest 50 changes. There are older ones.", "<td>act 50</td>"},
		"messages that ended": {51, func(s *site, n int) {
			testkit.Groups(s.t, s.Server, "orders", "g")
			for i := range n {
				require.NoError(s.t, s.Client.XAdd(ctx, &redis.XAddArgs{Stream: queue.NewKeys(s.Prefix, "orders").Ended(), ID: fmt.Sprintf("%d-1", i+1),
					Values: []any{"how", "cancelled", "id", fmt.Sprintf("id%d", n-i), "at", i + 1}}).Err())
			}
		}, "/ended?t=orders", "The newest 50. There are older ones.", "id50</a>"},
		"messages": {51, func(s *site, n int) { s.waits("orders", n) }, "/messages?t=orders", "51 messages in this state. This page has 50 of them.", "50 messages in this state."},
		"messages of a filter": {1001, func(s *site, n int) { s.waits("orders", n) }, "/messages?t=orders&key=kind&value=gift",
			"The filter chooses 1,000 of those that this page looked at. The next page goes on.", "The filter chooses 1,000 of them."},
		"memory": {21, func(s *site, n int) {
			for _, topic := range named("t-%04d", n) {
				s.waits(topic, 1)
			}
		}, "/memory", "These are the largest of 21 topics", "These are all of 20 topics"},
	} {
		for _, n := range []int{c.n, c.n - 1} {
			test := func(t *testing.T, server redistest.Server) {
				s := siteOn(t, server, operator)
				c.make(s, n)
				s = siteOn(t, s.Server, operator) // its first round has them
				s.page.Stop(1500, 20)             // not 20,000 and 500, which take the embedded server long
				want := map[bool]string{true: c.says, false: c.all}[n == c.n]
				body, looks := "", 0
				require.Eventually(t, func() bool { // topics are read in the background, and a page is kept for a while
					looks++
					_, body = s.get(fmt.Sprint("/?q=", looks))
					return !strings.Contains(body, "Reading the topics")
				}, testkit.Soon, 10*time.Millisecond)
				require.Eventually(t, func() bool {
					status := 0
					status, body = s.get(c.address)
					require.Equal(t, http.StatusOK, status)
					return strings.Contains(body, want)
				}, testkit.Soon, 10*time.Millisecond, want)
				if n < c.n {
					require.Empty(t, stops.FindString(body))
				}
			}
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				t.Parallel()
				// A busy embedded server reads so many topics too slowly for a client.
				if name == "topics with schedules" {
					redistest.Real(t, test)
					return
				}
				_, client := redistest.Embedded(t)
				test(t, redistest.On(t, client, "test"))
			})
		}
	}
}
