package promredisdelay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/periodic"
	promredisdelay "github.com/redisdelay/watermill-redisdelay/prometheus"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var (
	ctx  = context.Background()
	noon = time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)
)

// world is a server whose clock stands at noon.
type world struct {
	*testing.T
	server    *redisdelaytest.Server
	publisher *redisdelay.Publisher
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: noon})
	p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client()}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return &world{t, server, p}
}

func (w *world) publish(topic string, delays ...time.Duration) {
	w.Helper()
	for _, d := range delays {
		msg := message.NewMessage("", nil)
		redisdelay.DelayFor(msg, d)
		require.NoError(w, w.publisher.Publish(topic, msg))
	}
}

// group creates a group, and returns its Subscriber.
func (w *world) group(topic, name string) *redisdelay.Subscriber {
	w.Helper()
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: w.server.Client(), ConsumerGroup: name, MaxDeliveries: 1}, nil)
	require.NoError(w, err)
	w.Cleanup(func() { _ = sub.Close() })
	require.NoError(w, sub.SubscribeInitialize(topic))
	return sub
}

func (w *world) collector(change ...func(*promredisdelay.Config)) *promredisdelay.Collector {
	w.Helper()
	config := promredisdelay.Config{Admin: w.server.Admin(), OnError: func(err error) { w.Log(err) }}
	for _, f := range change {
		f(&config)
	}
	c, err := promredisdelay.New(config)
	require.NoError(w, err)
	return c
}

// requireMetrics compares the metrics that want names, without HELP and TYPE.
func requireMetrics(t *testing.T, c prometheus.Collector, want string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]bool{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			note := func(suffix, labels string, value float64) {
				got[strings.TrimPrefix(family.GetName(), "redisdelay_")+suffix+"{"+labels+"} "+strconv.FormatFloat(value, 'f', -1, 64)] = true
			}
			if h := m.GetHistogram(); h != nil {
				note("_count", strings.Join(labels, ","), float64(h.GetSampleCount()))
				note("_sum", strings.Join(labels, ","), h.GetSampleSum())
				for _, b := range h.GetBucket() {
					note("_bucket", strings.Join(append(labels, fmt.Sprintf(`le="%v"`, b.GetUpperBound())), ","), float64(b.GetCumulativeCount()))
				}
				continue
			}
			note("", strings.Join(labels, ","), m.GetGauge().GetValue()+m.GetCounter().GetValue())
		}
	}
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" {
			require.Contains(t, got, line)
		}
	}
}

func TestMetricsOfATopic(t *testing.T) {
	w := newWorld(t)
	sub := w.group("orders", "shop")
	messages, err := sub.Subscribe(ctx, "orders")
	require.NoError(t, err)
	w.publish("orders", 0)
	w.server.Receive(t, messages).Nack()
	w.server.AwaitDrained(t, "orders")
	require.NoError(t, sub.Close())
	w.publish("orders", 0, 0, time.Hour, 2*time.Hour)
	_, err = w.server.Admin().Pause(ctx, "orders", admin.PauseOptions{Scope: admin.InGroup("shop")})
	require.NoError(t, err)
	w.server.Advance(time.Minute)
	requireMetrics(t, w.collector(), `
		up{} 1
		left_out{} 0
		stored_messages{topic="orders"} 5
		waiting_messages{topic="orders"} 2
		next_due_timestamp_seconds{topic="orders"} `+unix(noon.Add(time.Hour))+`
		overdue_seconds{topic="orders"} 0
		messages{group="shop",state="ready",topic="orders"} 2
		messages{group="shop",state="in_hand",topic="orders"} 0
		messages{group="shop",state="retrying",topic="orders"} 0
		messages{group="shop",state="dead",topic="orders"} 1
		oldest_ready_seconds{group="shop",topic="orders"} 60
		oldest_dead_timestamp_seconds{group="shop",topic="orders"} `+unix(noon)+`
		paused_timestamp_seconds{group="shop",topic="orders"} `+unix(noon)+`
		subscribed{group="shop",topic="orders"} 0
		suspects{group="shop",topic="orders"} 0
		delivered_messages_total{group="shop",topic="orders"} 1
	`)
}

// Each counter of admin is one of Prometheus.
func TestCounters(t *testing.T) {
	w := newWorld(t)
	w.group("orders", "shop")
	w.set("stats", "published", 1, "replaced", 2, "left_out", 3, "refused_full", 4, "history_failed", 6)
	w.set("stats:shop", "acked", 11, "nacked", 12, "retried", 13, "dropped", 14, "expired", 15, "disowned", 10, "suspects", 16, "lease_lost", 17, "given_up", 19,
		"dead_purged", 18, "history_failed", 28, "limited", 27, "limited_ms", 1500, "dead_deliveries", 21, "dead_lease", 22, "dead_asked", 23, "dead_late", 24, "dead_unmarshal", 25, "dead_killed", 26,
		"late_1", 5, "late_5", 2, "late_1000", 1, "late_60000", 1, "late_more", 3)
	requireMetrics(t, w.collector(), `
		published_messages_total{topic="orders"} 1
		replaced_messages_total{topic="orders"} 2
		left_out_messages_total{topic="orders"} 3
		refused_messages_total{topic="orders"} 4
		delivered_messages_total{group="shop",topic="orders"} 12
		acked_messages_total{group="shop",topic="orders"} 11
		nacked_messages_total{group="shop",topic="orders"} 12
		retried_messages_total{group="shop",topic="orders"} 13
		dropped_messages_total{group="shop",topic="orders"} 14
		expired_leases_total{group="shop",topic="orders"} 15
		disowned_leases_total{group="shop",topic="orders"} 10
		suspected_messages_total{group="shop",topic="orders"} 16
		lost_leases_total{group="shop",topic="orders"} 17
		given_up_messages_total{group="shop",topic="orders"} 19
		dead_purged_messages_total{group="shop",topic="orders"} 18
		history_failed_lines_total{group="",topic="orders"} 6
		history_failed_lines_total{group="shop",topic="orders"} 28
		limited_claims_total{group="shop",topic="orders"} 27
		limited_seconds_total{group="shop",topic="orders"} 1.5
		limited{group="shop",topic="orders"} 0
		dead_messages_total{cause="deliveries",group="shop",topic="orders"} 21
		dead_messages_total{cause="lease",group="shop",topic="orders"} 22
		dead_messages_total{cause="asked",group="shop",topic="orders"} 23
		dead_messages_total{cause="late",group="shop",topic="orders"} 24
		dead_messages_total{cause="unmarshal",group="shop",topic="orders"} 25
		dead_messages_total{cause="killed",group="shop",topic="orders"} 26
		lateness_seconds_bucket{group="shop",topic="orders",le="0.001"} 5
		lateness_seconds_bucket{group="shop",topic="orders",le="0.002"} 5
		lateness_seconds_bucket{group="shop",topic="orders",le="1"} 8
		lateness_seconds_bucket{group="shop",topic="orders",le="60"} 9
		lateness_seconds_bucket{group="shop",topic="orders",le="86400"} 9
		lateness_seconds_count{group="shop",topic="orders"} 12
		lateness_seconds_sum{group="shop",topic="orders"} 259230.504
	`)
}

// set sets fields of a hash of the topic "orders".
func (w *world) set(key string, fields ...any) {
	w.Helper()
	require.NoError(w, w.server.Client().HSet(ctx, redisdelay.DefaultKeyPrefix+":{orders}:"+key, fields...).Err())
}

func TestASchedulerThatFailsShows(t *testing.T) {
	w := newWorld(t)
	w.group("orders", "shop")
	c := w.collector()
	requireMetrics(t, c, `scheduler_failing{topic="orders"} 0`)
	w.set("scheduler", "fault", fmt.Sprintf("%d it broke", noon.UnixMilli()))
	requireMetrics(t, c, `scheduler_failing{topic="orders"} 1`)
}

// A group is limited while messages wait because of its limit.
func TestALimitedGroupShows(t *testing.T) {
	w := newWorld(t)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: w.server.Client(), ConsumerGroup: "shop", MaxInFlight: 2, AtOnce: 1, CloseTimeout: time.Millisecond}, nil)
	require.NoError(t, err)
	defer sub.Close()
	messages, err := sub.Subscribe(ctx, "orders")
	require.NoError(t, err)
	w.publish("orders", 0)
	w.publish("orders", 0)
	<-messages
	require.Eventually(t, func() bool {
		stats, err := w.server.Admin().Stats(ctx, "orders")
		require.NoError(t, err)
		return !stats.Groups[0].LimitedSince.IsZero()
	}, 10*time.Second, time.Millisecond)
	c := w.collector()
	before := valueOf(t, c, "redisdelay_limited_seconds_total")
	w.server.Advance(3 * time.Second)
	requireMetrics(t, c, `limited{group="shop",topic="orders"} 1`)
	require.InDelta(t, before+3, valueOf(t, c, "redisdelay_limited_seconds_total"), 0.5)
}

// valueOf returns the value of a counter that has one series.
func valueOf(t *testing.T, c prometheus.Collector, name string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			require.Len(t, f.GetMetric(), 1)
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.FailNow(t, "there is no metric", name)
	return 0
}

// A counter falls only when the exporter starts anew.
func TestCountersOfBroadcastGroupsDoNotFall(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"broadcast:1", "broadcast:2"} {
		w.group("orders", name)
	}
	w.set("stats:broadcast:1", "acked", 100)
	c := w.collector()
	requireAcked := func(c *promredisdelay.Collector, n int) {
		t.Helper()
		requireMetrics(t, c, fmt.Sprintf(`acked_messages_total{group="broadcast",topic="orders"} %d`, n))
	}
	requireAcked(c, 0) // since when is not known
	w.set("stats:broadcast:1", "acked", 102)
	w.set("stats:broadcast:2", "acked", 3)
	requireAcked(c, 5)
	_, err := w.server.Admin().DeleteGroup(ctx, "orders", "broadcast:1", admin.DeleteOptions{})
	require.NoError(t, err)
	requireAcked(c, 5)
	w.group("orders", "broadcast:3")
	w.set("stats:broadcast:3", "acked", 7)
	requireAcked(c, 12)
	requireAcked(w.collector(), 0)
}

func unix(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// A topic that no scheduler works for shows how late it is.
func TestATopicWithoutSchedulerIsOverdue(t *testing.T) {
	w := newWorld(t)
	w.publish("orders", time.Minute)
	w.server.Advance(time.Hour)
	requireMetrics(t, w.collector(), `
		overdue_seconds{topic="orders"} 3540
		scheduled{topic="orders"} 0
	`)
}

func TestBroadcastGroupsAreOneGroup(t *testing.T) {
	w := newWorld(t)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: w.server.Client(), Broadcast: true}, nil)
	require.NoError(t, err)
	defer sub.Close()
	for range 3 {
		_, err := sub.Subscribe(ctx, "news")
		require.NoError(t, err)
	}
	w.publish("news", 0)
	require.Eventually(t, func() bool {
		stats, err := w.server.Admin().Stats(ctx, "news")
		require.NoError(t, err)
		return stats.Groups[0].InHand == 1 && stats.Groups[1].InHand == 1 && stats.Groups[2].InHand == 1
	}, 10*time.Second, time.Millisecond)
	requireMetrics(t, w.collector(), `
		messages{group="broadcast",state="in_hand",topic="news"} 3
		subscribed{group="broadcast",topic="news"} 1
	`)
}

func TestTheNumberOfSeriesIsBounded(t *testing.T) {
	w := newWorld(t)
	for _, topic := range []string{"a", "b", "c", "d"} {
		w.group(topic, "shop")
	}
	w.group("b", "press")
	few := w.collector(func(c *promredisdelay.Config) { c.MaxGroups = 5 })
	require.Equal(t, 2, testutil.CollectAndCount(few, "redisdelay_stored_messages"))
	requireMetrics(t, few, `
		left_out{} 4
		stored_messages{topic="a"} 0
		stored_messages{topic="b"} 0
	`)
	named := w.collector(func(c *promredisdelay.Config) { c.Topics = []string{"c", "no such topic"} })
	require.Equal(t, 1, testutil.CollectAndCount(named, "redisdelay_stored_messages"))
	requireMetrics(t, named, `
		left_out{} 0
		stored_messages{topic="c"} 0
	`)
	w.group("a-p0-36", "shop") // of no partitioned topic, as the number behind it is wrong
	w.group("orders-p0-40", "shop")
	w.group("orders-p1-1147", "shop")
	whole := w.collector(func(c *promredisdelay.Config) { c.Topics = []string{"a", "orders"} })
	require.Equal(t, 3, testutil.CollectAndCount(whole, "redisdelay_stored_messages"))
	requireMetrics(t, whole, `
		stored_messages{topic="orders-p0-40"} 0
		stored_messages{topic="orders-p1-1147"} 0
	`)
}

// recur writes the record of an hourly schedule of topic "orders".
func (w *world) recur(name string, cursor, paused time.Time, missed int, last time.Time, waiting, end string) {
	w.Helper()
	ms := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixMilli()
	}
	w.set("schedules", name, fmt.Sprintf(`1 %d %d 0 0 0 %d 0 %d %s - - {"spec":"@hourly","zone":"UTC","misfire":"last"%s}`,
		ms(cursor), ms(paused), missed, ms(last), waiting, end))
}

func TestRecurringSchedulesShow(t *testing.T) {
	w := newWorld(t)
	w.group("orders", "shop")
	w.group("bills", "shop")
	at := func(hours int) time.Time { return noon.Add(time.Duration(hours) * time.Hour) }
	none := time.Time{}
	waiting := fmt.Sprint(at(1).UnixMilli())
	require.NoError(t, w.server.Client().ZAdd(ctx, redisdelay.DefaultKeyPrefix+":{orders}:taken",
		redis.Z{Score: float64(at(1).UnixMilli()), Member: "well%40" + waiting}).Err())
	w.recur("well", at(1), none, 3, at(0), waiting, "")
	w.recur("stopped", at(-3), none, 0, none, "-", "")
	w.recur("over", at(-3), none, 0, none, "-", `,"end":"2026-03-04T09:30:00Z"`)
	w.recur("paused", at(-3), at(-1), 0, none, "-", "")
	c := w.collector()
	requireMetrics(t, c, `
		up{} 1
		schedules_left_out{} 0
		schedule_last_timestamp_seconds{schedule="well",topic="orders"} `+unix(noon)+`
		schedule_next_timestamp_seconds{schedule="well",topic="orders"} `+unix(at(1))+`
		schedule_overdue_seconds{schedule="well",topic="orders"} 0
		schedule_missed_occurrences_total{schedule="well",topic="orders"} 3
		schedule_next_timestamp_seconds{schedule="stopped",topic="orders"} `+unix(at(-2))+`
		schedule_overdue_seconds{schedule="stopped",topic="orders"} 7200
		schedule_overdue_seconds{schedule="over",topic="orders"} 0
		schedule_overdue_seconds{schedule="paused",topic="orders"} 0
		schedule_paused_timestamp_seconds{schedule="paused",topic="orders"} `+unix(at(-1))+`
	`)
	require.Equal(t, 2, testutil.CollectAndCount(c, "redisdelay_schedule_next_timestamp_seconds"))
	require.Equal(t, 1, testutil.CollectAndCount(c, "redisdelay_schedule_paused_timestamp_seconds"))

	few := w.collector(func(c *promredisdelay.Config) { c.MaxSchedules = 3 })
	requireMetrics(t, few, `
		schedules_left_out{} 1
		schedule_overdue_seconds{schedule="stopped",topic="orders"} 7200
	`)
	require.Equal(t, 3, testutil.CollectAndCount(few, "redisdelay_schedule_overdue_seconds"))
	without := w.collector(func(c *promredisdelay.Config) { c.MaxSchedules = -1 })
	other := w.collector(func(c *promredisdelay.Config) { c.Topics = []string{"bills"} })
	for _, c := range []*promredisdelay.Collector{without, other} {
		require.Zero(t, testutil.CollectAndCount(c, "redisdelay_schedule_overdue_seconds"))
	}
}

// Redis keeps names as bytes. Two that differ in bytes that are not UTF-8 are two series.
func TestNamesThatAreNotUTF8AreDifferentSeries(t *testing.T) {
	w := newWorld(t)
	w.group("a\xff", "shop")
	w.group("a\xfe", "shop")
	w.group("a\xef", "shop") // the first byte of the replacement character
	w.group("a\ufffd", "shop")
	w.group("a\ufffdff", "shop") // as the first one is written
	requireMetrics(t, w.collector(), `
		stored_messages{topic="a�ff"} 0
		stored_messages{topic="a�fe"} 0
		stored_messages{topic="a�ef"} 0
		stored_messages{topic="a�ef�bf�bd"} 0
		stored_messages{topic="a�ef�bf�bdff"} 0
	`)
}

// Labels of different names are different, and UTF-8.
func FuzzLabels(f *testing.F) {
	for _, names := range [][2]string{{"", "a"}, {"a\xff", "a\ufffdff"}, {"\ufffd", "\xef\xbf"}, {"\xef", "\ufffdef"}, {"ü", "\xc3"}, {"\xff\xfe", "\xfe\xff"}} {
		f.Add(names[0], names[1])
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		labels := promredisdelay.Labels(one, other)
		if (one == other) != (labels[0] == labels[1]) {
			t.Errorf("%q and %q are %q and %q", one, other, labels[0], labels[1])
		}
		if !utf8.ValidString(labels[0]) {
			t.Errorf("%q is %q", one, labels[0])
		}
	})
}

func TestNamesFollowTheRulesOfPrometheus(t *testing.T) {
	w := newWorld(t)
	w.group("orders \xff", "shop")
	w.publish("orders \xff", time.Hour)
	problems, err := testutil.CollectAndLint(w.collector())
	require.NoError(t, err)
	require.Empty(t, problems)
}

// A program may put its client into a struct of its own.
func TestAClientMayBeEmbedded(t *testing.T) {
	w := newWorld(t)
	own := struct{ redis.UniversalClient }{w.server.Client()}
	_, err := promredisdelay.New(promredisdelay.Config{Admin: w.server.Admin(), Client: own})
	require.ErrorContains(t, err, "Client is a struct")
	embedded := struct{ *redis.Client }{w.server.Client().(*redis.Client)}
	c := w.collector(func(c *promredisdelay.Config) { c.Client = embedded })
	requireMetrics(t, c, `up{} 1`)
}

// If Redis does not answer, the scrape succeeds, and says so.
func TestAScrapeWithoutRedisIsNotUp(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer client.Close()
	a, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	var errs []error
	c, err := promredisdelay.New(promredisdelay.Config{Admin: a, Client: client, OnError: func(err error) { errs = append(errs, err) }})
	require.NoError(t, err)
	requireMetrics(t, c, `up{} 0`)
	require.Len(t, errs, 2)
	require.ErrorContains(t, errors.Join(errs...), "read the memory of Redis")
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	config := promredisdelay.Config{Client: ring, Topics: []string{"orders", ""}, MaxGroups: -1, MaxSchedules: -1, Timeout: -1}
	const want = `invalid configuration: Admin is required
invalid configuration: Client is a *redis.Ring; want a *redis.Client or *redis.ClusterClient, or nil for no metrics of memory
invalid configuration: Topics[1] has 0 bytes; want 1 to 512
invalid configuration: MaxGroups is -1; it has to be positive, or zero for the default
invalid configuration: Timeout is -1ns; it has to be positive, or zero for the default`
	require.EqualError(t, config.Validate(), want)
	_, err := promredisdelay.New(config)
	require.EqualError(t, err, want)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	var fault *redisdelay.FieldError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, "Admin", fault.Field)
	s := redisdelaytest.Start(t)
	require.NoError(t, promredisdelay.Config{Admin: s.Admin()}.Validate())
}

// The table in docs/telemetry.md is generated from the metrics: UPDATE=1 go test.
func TestMetricsAreDescribed(t *testing.T) {
	t.Parallel()
	const document, begin, end = "../docs/telemetry.md", "<!-- metrics:begin -->\n", "<!-- metrics:end -->"
	table := "| Metric, after `redisdelay_` | Labels | Meaning |\n|---|---|---|\n"
	form := regexp.MustCompile(`fqName: "redisdelay_(\w+)", help: "(.*?)",(?: unit: "[^"]*",)? constLabels: \{\}, variableLabels: \{(.*)\}\}`)
	for d := range promredisdelay.Described {
		part := form.FindStringSubmatch(d.String())
		require.NotNil(t, part, d)
		table += fmt.Sprintf("| `%s` | %s | %s |\n", part[1], strings.ReplaceAll(part[3], ",", ", "), part[2])
	}
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	before, rest, _ := strings.Cut(string(text), begin)
	section, after, found := strings.Cut(rest, end)
	require.True(t, found)
	if os.Getenv("UPDATE") == "1" && section != table {
		require.NoError(t, os.WriteFile(document, []byte(before+begin+table+end+after), 0o644))
		return
	}
	require.Equal(t, table, section, "UPDATE=1 writes it")
}

// Each metric that a rule reads is one that the Collector has, and each alert has tests of when it
// fires, and when not.
func TestAlertsReadMetricsOfTheCollector(t *testing.T) {
	t.Parallel()
	var names []string
	for d := range promredisdelay.Described {
		names = append(names, d.String())
	}
	all := strings.Join(names, "\n")
	for _, file := range []string{"alerts", "slo"} {
		rules, err := os.ReadFile(file + ".yml")
		require.NoError(t, err)
		read := regexp.MustCompile(`redisdelay_[a-z_]+`).FindAllString(string(rules), -1)
		require.NotEmpty(t, read)
		for _, name := range read {
			for _, suffix := range []string{"_bucket", "_count"} {
				name = strings.TrimSuffix(name, suffix)
			}
			require.Contains(t, all, `"`+name+`"`)
		}
		tests, err := os.ReadFile(file + "_test.yml")
		require.NoError(t, err)
		for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
			named := "alertname: " + alert[1] + "\n        exp_alerts:"
			require.Contains(t, string(tests), named+" []\n", "%s: want a test in which it does not fire", alert[1])
			require.Contains(t, string(tests), named+"\n", "%s: want a test in which it fires", alert[1])
		}
	}
}

// A scrape of 1,000 topics, with a group each, takes Redis less than 50 ms, in steps of less than
// 2 ms.
func TestAScrapeOfAThousandTopicsIsCheap(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, _ redistest.Server) {
		in := redistest.Start(t)
		client := patient(t, in)
		p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
		require.NoError(t, err)
		sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, nil)
		require.NoError(t, err)
		var made sync.WaitGroup
		for part := range 10 {
			made.Go(func() {
				for i := range 100 {
					topic := fmt.Sprintf("topic %04d", part*100+i)
					assert.NoError(t, sub.SubscribeInitialize(topic))
					assert.NoError(t, p.Publish(topic, message.NewMessage("", nil)))
				}
			})
		}
		made.Wait()
		require.NoError(t, errors.Join(p.Close(), sub.Close()))
		a, err := admin.New(admin.Config{Client: client})
		require.NoError(t, err)
		c, err := promredisdelay.New(promredisdelay.Config{Admin: a, Client: client, Timeout: time.Minute})
		require.NoError(t, err)
		require.Equal(t, 1003, testutil.CollectAndCount(c, "redisdelay_stored_messages", "redisdelay_redis_memory_used_bytes",
			"redisdelay_redis_memory_limit_bytes", "redisdelay_redis_evicted_keys_total"))

		requireCheap(t, client, func() { require.Equal(t, 1000, testutil.CollectAndCount(c, "redisdelay_stored_messages")) }, 22_000, 1000)
	})
}

// patient is a client that gives a busy server time, so that no command is sent twice.
func patient(t *testing.T, in *redistest.Instance) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: in.Addr(), ReadTimeout: time.Minute, WriteTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// requireCheap requires that f has the server run at most some commands, those of scripts too, in
// at least some calls of scripts, so that none takes long. It logs what that took on this machine.
func requireCheap(t *testing.T, client *redis.Client, f func(), most, scripts int) {
	t.Helper()
	f() // loads the scripts, and asks which commands are allowed
	require.NoError(t, client.ConfigResetStat(ctx).Err())
	before := cpu(t, client)
	f()
	took := cpu(t, client) - before
	stats, err := client.Info(ctx, "commandstats").Result()
	require.NoError(t, err)
	ran, calls := 0, 0
	for line := range strings.Lines(stats) {
		name, rest, _ := strings.Cut(line, ":")
		count, _, _ := strings.Cut(strings.TrimPrefix(rest, "calls="), ",")
		if n, err := strconv.Atoi(count); err == nil {
			ran += n
			if name == "cmdstat_evalsha" {
				calls = n
				_, perCall, _ := strings.Cut(rest, "usec_per_call=")
				t.Logf("%d scripts, %.5s us each", n, perCall)
			}
		}
	}
	t.Logf("%d commands, %v of Redis", ran, took)
	require.LessOrEqual(t, ran, most)
	require.GreaterOrEqual(t, calls, scripts)
}

// Ten thousand schedules take about two commands each, in steps of less than a millisecond.
func TestAScrapeOfTenThousandSchedulesIsCheap(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, _ redistest.Server) {
		client := patient(t, redistest.Start(t))
		p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
		require.NoError(t, err)
		defer p.Close()
		recurring, err := periodic.New(periodic.Config{Publisher: p}, nil)
		require.NoError(t, err)
		for i := range 10_000 {
			require.NoError(t, recurring.Add(periodic.Schedule{Name: fmt.Sprintf("schedule %04d", i), Topic: "reports", Spec: "@yearly",
				Message: func(periodic.Occurrence) (*message.Message, error) { return message.NewMessage("", nil), nil }}))
		}
		running, stop := context.WithCancel(ctx)
		ran := make(chan error, 1)
		go func() { ran <- recurring.Run(running) }()
		require.Eventually(t, func() bool {
			return client.ZCard(ctx, redisdelay.DefaultKeyPrefix+":{reports}:pending").Val() >= 10_000
		},
			5*time.Minute, 10*time.Millisecond)
		stop()
		require.NoError(t, <-ran)
		a, err := admin.New(admin.Config{Client: client})
		require.NoError(t, err)
		c, err := promredisdelay.New(promredisdelay.Config{Admin: a, MaxSchedules: 10_000, Timeout: time.Minute})
		require.NoError(t, err)
		requireCheap(t, client, func() {
			require.Equal(t, 10_000, testutil.CollectAndCount(c, "redisdelay_schedule_next_timestamp_seconds"))
		}, 22_000, 200)
	})
}

func cpu(t testing.TB, client *redis.Client) (total time.Duration) {
	t.Helper()
	info, err := client.Info(ctx, "cpu").Result()
	require.NoError(t, err)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			total += time.Duration(seconds * float64(time.Second))
		}
	}
	return total
}
