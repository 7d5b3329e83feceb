package dashboard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

// recur runs schedules until an occurrence of each is in Redis.
func (s *site) recur(schedules ...periodic.Schedule) {
	s.t.Helper()
	p, err := periodic.New(periodic.Config{Publisher: testkit.NewPublisher(s.t, s.Server)}, nil)
	require.NoError(s.t, err)
	for _, one := range schedules {
		one.Message = func(periodic.Occurrence) (*message.Message, error) { return message.NewMessage("", nil), nil }
		require.NoError(s.t, p.Add(one))
	}
	running, end := context.WithCancel(ctx)
	ended := testkit.Begin(func() error { return p.Run(running) })
	for _, one := range schedules {
		require.Eventually(s.t, func() bool { return !s.schedule(one.Topic, one.Name).Next.IsZero() }, testkit.Soon, time.Millisecond)
	}
	end()
	require.NoError(s.t, <-ended)
}

// schedule returns a schedule as Redis has it, empty if there is none.
func (s *site) schedule(topic, name string) admin.Schedule {
	s.t.Helper()
	all, err := s.admin.Schedules(ctx, topic)
	require.NoError(s.t, err)
	for _, one := range all[0].Schedules {
		if one.Name == name {
			return one
		}
	}
	return admin.Schedule{}
}

var berlin = func() *time.Location {
	location, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	return location
}()

// dailyAt is the hour of daily: one that is far away, so that nothing is due during a test. It is
// not between two and three, which one night has not.
var dailyAt = func() int {
	if hour := (time.Now().In(berlin).Hour() + 12) % 24; hour != 2 {
		return hour
	}
	return 3
}()

func daily(topic, name string) periodic.Schedule {
	spec := fmt.Sprintf("30 %d * * *", dailyAt)
	return periodic.Schedule{Name: name, Topic: topic, Spec: spec, Location: berlin, Misfire: periodic.MisfireAll}
}

func TestSchedulesAreShownAndChanged(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.recur(daily("reports", "a/b c"), daily("bills", "monthly"))
	s = siteOn(t, s.Server, operator) // its first round has them
	spec := fmt.Sprintf("<code>30 %d * * *</code>", dailyAt)
	for address, want := range map[string][]string{
		"/schedules":           {">a/b c</a>", ">monthly</a>", ">reports</a>", spec, "Europe/Berlin"},
		"/schedules?t=reports": {">a/b c</a>", spec},
		"/schedule?t=reports&s=a%2Fb+c": {"<h1>a/b c</h1>", "Europe/Berlin", "all are published, within 1 d", fmt.Sprintf(" %02d:30:00 CE", dailyAt), `name="s-escaped" value="a%2Fb&#43;c"`,
			"Ask for an occurrence"},
	} {
		require.Eventually(t, func() bool { // all topics are read in the background
			status, body := s.get(address)
			require.Equal(t, http.StatusOK, status, address)
			return containsAll(body, want...)
		}, testkit.Soon, 10*time.Millisecond, address)
	}
	_, body := s.get("/schedules?t=reports")
	require.NotContains(t, body, "monthly")
	_, body = s.get("/schedule?t=reports&s=a%2Fb+c")
	require.Contains(t, body, `<dt>Last</dt><dd>–</dd>`) // none was due yet
	require.Contains(t, body, `<dt>Waiting</dt><dd>1</dd>`)

	on := []string{"t", "reports", "s", "a/b c"}
	status, to := s.post("/schedule/pause", append(on, "why", "stock-taking", "for", "2h")...)
	require.Equal(t, http.StatusSeeOther, status)
	pause := s.schedule("reports", "a/b c").Pause
	require.Equal(t, 2*time.Hour, pause.Until.Sub(pause.Since))
	_, body = s.get(to)
	require.Regexp(t, `Paused <time [^>]*>[^<]*</time> by ann, until <time [^>]*>[^<]*</time>: stock-taking\. Instants`, body)
	require.NotContains(t, body, "Nothing comes")
	status, _ = s.post("/schedule/pause", append(on, "for", "soon")...)
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, body, "Paused, and 1 waiting occurrence taken back.")
	_, to = s.post("/schedule/pause", on...)
	_, body = s.get(to)
	require.Regexp(t, `Paused <time [^>]*>[^<]*</time> by ann\. Instants`, body)
	require.Contains(t, body, "Nothing comes while the schedule is paused.")
	_, body = s.get("/schedules?t=reports")
	require.Contains(t, body, "paused by ann")
	require.Eventually(t, func() bool { // the banner leads there
		_, body := s.get("/topic?t=reports")
		return containsAll(body, "A pause of schedule", `<a class="button" href="/schedules?t=reports">Schedules</a>`)
	}, testkit.Soon, 10*time.Millisecond)

	for _, do := range []string{"run", "resume"} {
		status, _ = s.post("/schedule/"+do, on...)
		require.Equal(t, http.StatusSeeOther, status)
	}
	require.Nil(t, s.schedule("reports", "a/b c").Pause)
	require.False(t, s.schedule("reports", "a/b c").Requested.IsZero())
	status, _ = s.post("/schedule/drop", on...)
	require.Equal(t, http.StatusNotFound, status)
	status, _ = s.post("/schedule/pause", "t", "reports", "s", "other")
	require.Equal(t, http.StatusNotFound, status)

	_, body = s.get("/confirm?do=remove-schedule&t=reports&s=a%2Fb+c")
	require.Contains(t, body, "Remove the schedule with 0 waiting occurrences")
	require.Contains(t, body, "Type the name of the schedule to confirm")
	form := []string{"do", "remove-schedule", "t", "reports", "s", "a/b c", "count", "0", "typed-count", "0", "typed-name"}
	status, _ = s.post("/confirm", append(form, "reports")...)
	require.Equal(t, http.StatusBadRequest, status)
	require.NotZero(t, s.schedule("reports", "a/b c").Version)
	status, to = s.post("/confirm", append(form, "a/b c")...)
	require.Equal(t, http.StatusSeeOther, status)
	require.Eventually(t, func() bool { _, body := s.get(to); return containsAll(body, "<strong>Done</strong>") }, testkit.Soon, time.Millisecond)
	require.Zero(t, s.schedule("reports", "a/b c").Version)
	status, _ = s.get("/schedule?t=reports&s=a%2Fb+c")
	require.Equal(t, http.StatusNotFound, status)

	acts, _, err := s.admin.Acts(ctx, "", 0)
	require.NoError(t, err)
	var did []string
	for _, a := range acts {
		require.Equal(t, "reports", a.Topic)
		did = append(did, a.By+" "+a.Action+" "+a.Schedule)
	}
	require.Equal(t, []string{"ann remove-schedule a/b c", "ann remove-schedule a/b c", "ann pause-schedule other", "ann resume-schedule a/b c",
		"ann run-schedule a/b c", "ann pause-schedule a/b c", "ann pause-schedule a/b c"}, did)
	_, body = s.get("/audit")
	require.Contains(t, body, `href="/schedule?s=a%2Fb&#43;c&amp;t=reports"`)
}

// The page of a schedule has what is counted of all schedules of its topic.
func TestAScheduleHasTheCountersOfItsTopic(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	s.recur(daily("reports", "a"))
	for _, group := range []string{"billing", "audit"} {
		_, err := s.admin.AddGroup(ctx, "reports", group, admin.GroupSettings{})
		require.NoError(t, err)
		require.NoError(t, s.Client.HSet(ctx, s.Prefix+":{reports}:stats:"+group, "skipped", 2).Err())
	}
	require.NoError(t, s.Client.HSet(ctx, s.Prefix+":{reports}:stats", "refused_occurrences", 3, "returned", 1).Err())
	_, body := s.get("/schedule?t=reports&s=a")
	for _, want := range []string{"<h2>All schedules of the topic</h2>", "<dt>Came too late, or had changed</dt><dd>3</dd>",
		"<dt>Skipped as overlaps</dt><dd>4</dd>", "<dt>Came back after a clock</dt><dd>1</dd>"} {
		require.Contains(t, body, want)
	}
}

// A record that no program has written is shown as it is.
func TestAScheduleThatCannotBeReadIsShown(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.recur(daily("reports", "a"))
	key := s.Prefix + ":{reports}:schedules"
	require.NoError(t, s.Client.HSet(ctx, key, "odd", "1 1 0 0 0 0 0 0 0 - - - "+hostile, "broken", "7 what").Err())
	for _, address := range []string{"/schedules?t=reports", "/schedule?t=reports&s=odd", "/schedule?t=reports&s=broken"} {
		status, body := s.get(address)
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, body, "cannot be read")
		require.NotContains(t, body, "<script>alert")
	}
}

// Many schedules have pages, and a number beyond them is no page.
func TestManySchedulesHavePages(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	s.recur(daily("reports", "a"))
	record := s.Client.HGet(ctx, s.Prefix+":{reports}:schedules", "a").Val()
	pipe := s.Client.Pipeline()
	for i := range 149 {
		pipe.HSet(ctx, s.Prefix+":{reports}:schedules", "b"+string(rune('A'+i/26))+string(rune('a'+i%26)), record)
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	_, body := s.get("/schedules?t=reports")
	require.Contains(t, body, "Page 1 of 2")
	_, body = s.get("/schedules?t=reports&page=2")
	require.Contains(t, body, ">bFs</a>")
	for _, page := range []string{"3", "0", "-1", "x", "99999999999999999999"} {
		status, _ := s.get("/schedules?t=reports&page=" + page)
		require.Equal(t, http.StatusNotFound, status, page)
	}
	s = siteOn(t, s.Server, viewer) // its first round has them
	require.Eventually(t, func() bool {
		_, body := s.get("/schedules")
		return containsAll(body, "reports: the first 20 of 150 schedules.")
	}, testkit.Soon, 10*time.Millisecond)
}

// A topic that cannot be read does not hide the others.
func TestSchedulesOfOtherTopicsAreShown(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	s.recur(daily("reports", "a"), daily("bills", "b"))
	require.NoError(t, s.Client.(*redis.Client).Set(ctx, s.Prefix+":{bills}:schedules", "x", 0).Err())
	s = siteOn(t, s.Server, viewer) // its first round has them
	require.Eventually(t, func() bool {
		_, body := s.get("/schedules")
		return containsAll(body, ">a</a>", "The schedules of 1 topic cannot be read")
	}, testkit.Soon, 10*time.Millisecond)
}

// A link cannot have somebody type another name than that of the topic.
func TestALinkDoesNotChooseWhatIsTyped(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.publish("orders", time.Hour, nil, "x")
	_, body := s.get("/confirm?do=remove-topic&t=orders&s=" + url.QueryEscape("yes, I do"))
	require.Contains(t, body, "Type the topic to confirm")
	require.NotContains(t, body, "yes, I do")
	status, _ := s.post("/confirm", "do", "remove-topic", "t", "orders", "s", "x", "count", "1", "typed-count", "1", "typed-name", "x")
	require.Equal(t, http.StatusBadRequest, status)
	_, err := s.admin.Stats(ctx, "orders")
	require.NoError(t, err)
}
