package dashboard

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// quick is how long a page may take.
var quick = func() time.Duration {
	if os.Getenv("DASHBOARD_LARGE") == "" {
		return 3 * time.Second // other tests may run beside this one: the figures are in the log
	}
	return 300 * time.Millisecond
}()

// load loads a page, and returns how long that took.
func (s *site) load(path string) (body string, took time.Duration) {
	s.t.Helper()
	began := time.Now()
	answer, err := http.Get(s.address + path)
	require.NoError(s.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, answer.StatusCode, "%s: %s", path, text)
	return string(text), time.Since(began)
}

// The first page comes at once, also while the topics are being read.
func TestTenThousandTopics(t *testing.T) {
	redistest.Real(t, func(t *testing.T, server redistest.Server) {
		const topics = 10_000
		pipe := server.Client.Pipeline()
		for i := range topics {
			name := fmt.Sprintf("topic-%05d", i)
			keys := queue.NewKeys(server.Prefix, name)
			pipe.HSet(ctx, keys.Meta(), "layout", queue.Layout, "groups", "x")
			pipe.HSet(ctx, keys.Groups(), group, "25 -1 -1")
			pipe.SAdd(ctx, queue.Registry(server.Prefix), name)
		}
		_, err := pipe.Exec(ctx)
		require.NoError(t, err)
		s := serve(t, server, operator)
		_, took := s.load("/")
		t.Logf("the first page, while the topics are being read: %v", took)
		require.Less(t, took, quick)
		require.Eventually(t, func() bool {
			body, _ := s.load("/?q=topic-09999")
			return strings.Contains(body, "1 topic with") && !strings.Contains(body, "so far")
		}, patience, 50*time.Millisecond)
		for _, path := range []string{"/", "/?page=200", "/?sort=dead", "/?q=topic-0999", "/topic?t=topic-00500", "/schedules"} {
			_, took := s.load(path)
			t.Logf("%s: %v", path, took)
			require.Less(t, took, quick, path)
		}
		b := open(t, s.address)
		b.sees("10,000", "Page 1 of 200", "Live")
	})
}

// A million messages in one topic. It takes a minute, so it is for make dashboard-large.
func TestAMillionMessages(t *testing.T) {
	if os.Getenv("DASHBOARD_LARGE") == "" {
		t.Skip("DASHBOARD_LARGE is not set: make dashboard-large")
	}
	redistest.Real(t, func(t *testing.T, server redistest.Server) {
		s := serve(t, server, operator)
		s.register()
		publisher := testkit.NewPublisher(t, server)
		for i := range 1000 {
			batch := make([]*message.Message, 1000)
			for j := range batch {
				batch[j] = message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"order":%d}`, 1000*i+j))
				redisdelay.DelayFor(batch[j], time.Hour+time.Duration(1000*i+j)*time.Second)
			}
			require.NoError(t, publisher.Publish(topic, batch...))
		}
		for _, path := range []string{"/", "/topic?t=" + topic, "/topic?range=month&t=" + topic, "/messages?t=" + topic, "/audit"} {
			_, took := s.load(path)
			t.Logf("%s: %v", path, took)
			require.Less(t, took, quick, path)
		}
	})
}

// A page that is open costs Redis about a thousandth of its time, and one that is opened again and
// again a hundredth at most. It takes a minute, so it is for
// make dashboard-large.
func TestAnOpenPageCostsRedisLittle(t *testing.T) {
	if os.Getenv("DASHBOARD_LARGE") == "" {
		t.Skip("DASHBOARD_LARGE is not set: make dashboard-large")
	}
	in := redistest.Start(t)
	s := serve(t, redistest.On(t, in.Client(t), "open"), operator)
	for i := range 60 {
		s.publish(fmt.Sprint("topic ", i), time.Hour, "x")
	}
	costs := func(during func(began time.Time)) (share float64) {
		t.Helper()
		require.NoError(t, s.Client.ConfigResetStat(ctx).Err())
		began := time.Now()
		during(began)
		took := time.Duration(0)
		for _, usec := range regexp.MustCompile(`cmdstat_(?:evalsha|info|sscan|pubsub\S*):calls=\d+,usec=(\d+),`).FindAllStringSubmatch(s.Client.Info(ctx, "commandstats").Val(), -1) {
			n, err := strconv.Atoi(usec[1])
			require.NoError(t, err)
			took += time.Duration(n) * time.Microsecond
		}
		return float64(took) / float64(time.Since(began))
	}
	for _, path := range []string{"/", "/topic?t=topic+1", "/schedules"} {
		b := open(t, s.address+path)
		time.Sleep(5 * time.Second) // until connections and scripts are there
		share := costs(func(time.Time) { time.Sleep(20 * time.Second) })
		t.Logf("%s: %.3f %% of the time of Redis", path, 100*share)
		require.Less(t, share, 0.002, path)
		b.close()
	}
	for range 10 { // until connections and scripts are there
		s.load("/")
	}
	share := costs(func(began time.Time) {
		for time.Since(began) < 20*time.Second {
			s.load("/")
		}
	})
	t.Logf("/, opened again and again: %.3f %% of the time of Redis", 100*share)
	require.Less(t, share, 0.01)
}
