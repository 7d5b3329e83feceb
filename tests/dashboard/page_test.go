package dashboard

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

//go:embed testdata/axe.js
var axe string

// pages are the addresses of all pages. The topic has a message that waits and a dead letter.
func (s *site) pages(topic string) map[string]string {
	s.t.Helper()
	waiting, err := s.admin.List(ctx, topic, admin.Query{State: admin.Waiting, Limit: 1})
	require.NoError(s.t, err)
	q := url.QueryEscape(topic)
	stats, err := s.admin.Stats(ctx, topic)
	require.NoError(s.t, err)
	g := url.QueryEscape(stats.Groups[0].Group)
	return map[string]string{"schedules": "/schedules", "schedules of a topic": "/schedules?t=" + q, "schedule": "/schedule?t=" + q + "&s=" + url.QueryEscape(recurring),
		"remove schedule": "/confirm?do=remove-schedule&t=" + q + "&s=" + url.QueryEscape(recurring), "overview": "/", "topic": "/topic?t=" + q, "messages": "/messages?t=" + q, "letters": "/messages?t=" + q + "&state=dead&g=" + g,
		"message": "/message?t=" + q + "&id=" + waiting.Messages[0].ID, "dead": "/dead?t=" + q + "&g=" + g,
		"confirm": "/confirm?do=move&t=" + q + "&g=" + g, "audit": "/audit", "error": "/topic?t=no+such+topic", "find": "/find?q=" + q, "find nothing": "/find?q=nothing&t=" + q, "empty": "/?q=nothing+like+this"}
}

// axe-core finds nothing on any page, in any look, and no page is wider than a phone.
func TestPagesAreAccessible(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.die(3, 300) // wider than a phone
		s.publish(topic, time.Hour, `{"order":1,"pad":"`+strings.Repeat("0", 300)+`"}`)
		_, err := s.admin.Pause(ctx, topic, admin.PauseOptions{By: "ann"})
		require.NoError(t, err)
		require.NoError(t, s.admin.Record(ctx, admin.Act{By: "ann", Action: "pause", Topic: topic}))
		s.recur(topic, recurring)
		_, _, err = s.admin.PauseSchedule(ctx, topic, recurring, admin.PauseOptions{})
		require.NoError(t, err)
		require.NoError(t, s.admin.Record(ctx, admin.Act{By: "ann", Action: "pause-schedule", Topic: topic, Schedule: recurring}))
		pages := s.pages(topic)
		pages["check"] = s.checked(topic)
		for name, path := range pages {
			b := open(t, s.address+path, light)
			b.do(script(`document.querySelectorAll("details").forEach((d) => d.open = true)`))
			accessible(t, b, name)
			b.do(phone)
			wider := got(b, chromedp.Evaluate[bool](`document.documentElement.scrollWidth > innerWidth`))
			assert.False(t, wider, "%s is wider than a phone", name)
			b.close()
		}
	})
}

// accessible checks the page that the browser shows.
func accessible(t *testing.T, b *tab, name string) {
	t.Helper()
	b.do(script(axe))
	for look, action := range map[string]step{"light": light, "dark": dark} {
		b.do(action)
		found := got(b, chromedp.Evaluate[string](`axe.run({resultTypes: ["violations"]}).then((r) => JSON.stringify(r.violations.map((v) => [v.id, v.help, v.nodes.map((n) => n.html + " " + n.failureSummary)])))`,
			chromedp.EvalAwaitPromise))
		require.JSONEq(t, "[]", found, "%s, %s", name, look)
	}
}

// hostile would run a script, wherever the page did not show it as text.
const hostile = `"'><script>window.hacked=1</script><img src=x onerror="window.hacked=1"><a href="javascript:window.hacked=1">` + "\x00\x1b[31m"

func TestHostileTextsRunNothing(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, server redistest.Server) {
		user := operator
		user.Name = hostile
		s := serve(t, server, user)
		sub := testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup, c.CloseTimeout = hostile, time.Second })
		messages := testkit.SubscribeTo(t, sub, hostile)
		for i := range 2 {
			msg := message.NewMessage(hostile, []byte(hostile))
			msg.Metadata.Set(hostile, hostile)
			redisdelay.SetDelayID(msg, hostile, redisdelay.DelayIDReplace)
			redisdelay.DelayFor(msg, time.Duration(i)*time.Hour)
			require.NoError(t, testkit.NewPublisher(t, s.Server).Publish(hostile, msg))
			if i == 0 {
				dead := <-messages
				redisdelay.DeadOnNack(dead, fmt.Errorf("%s", hostile))
				dead.Nack()
			}
		}
		_, err := s.admin.Pause(ctx, hostile, admin.PauseOptions{Scope: admin.InGroup(hostile), By: hostile, Why: hostile})
		require.NoError(t, err)
		s.recur(hostile, recurring, hostile)
		require.NoError(t, s.admin.Record(ctx, admin.Act{By: hostile, Action: hostile, Schedule: hostile, Topic: hostile, Group: hostile, MessageID: hostile, Detail: hostile, Error: hostile}))
		require.Eventually(t, func() bool {
			stats, err := s.admin.Stats(ctx, hostile)
			return err == nil && stats.Groups[0].Dead == 1
		}, patience, 5*time.Millisecond)
		pages := s.pages(hostile)
		pages["hostile schedule"] = "/schedule?t=" + url.QueryEscape(hostile) + "&s=" + url.QueryEscape(hostile)
		pages["check"] = s.checked(hostile)
		for name, path := range pages {
			b := open(t, s.address+path)
			if name == "overview" || name == "topic" || name == "message" || name == "dead" || name == "audit" {
				b.do(script(`new Promise((done) => document.body.addEventListener("htmx:sseMessage", done, {once: true})).then(() => 1)`, chromedp.EvalAwaitPromise))
			}
			require.True(t, got(b, chromedp.Evaluate[bool](`window.hacked === undefined && document.querySelectorAll("main img, main script, a[href^='javascript']").length === 0`)), name)
			b.close()
		}
	})
}

// The policy keeps a script from running even if somebody gets one into the page.
func TestThePolicyStopsScriptsInThePage(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		b := open(t, s.address)
		hacked := got(b, chromedp.Evaluate[bool](`(() => {
			const script = document.createElement("script");
			script.textContent = "window.hacked = 1";
			document.body.append(script);
			document.body.insertAdjacentHTML("beforeend", "<p onclick='window.hacked = 1' id='trap' style='color: red'>trap</p>");
			document.getElementById("trap").click();
			return window.hacked === 1;
		})()`))
		require.False(t, hacked)
		framed := got(b, chromedp.Evaluate[bool](`getComputedStyle(document.getElementById("trap")).color === "rgb(255, 0, 0)"`))
		require.False(t, framed, "the policy allows styles in the page")
		b.faults = nil // those of the policy were meant
	})
}

func TestThePageIsLiveAndUsedByKeyboard(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		s.publish(topic, time.Hour, "first")
		b := open(t, s.address)
		b.sees("Live", topic)
		b.do(chromedp.KeyEvent("j"))
		s.publish(topic, time.Hour, "second", "third")
		got(b, chromedp.Poll[bool](`[...document.querySelectorAll("td.n")].some((d) => d.textContent.trim() === "3")`, chromedp.WithPollingTimeout(patience)))
		focused := got(b, chromedp.Evaluate[string](`document.activeElement.textContent`))
		require.Equal(t, topic, focused, "news take the focus away")
		b.do(chromedp.KeyEvent(kb.Enter))
		b.sees("Becomes due in the next hour", "3 messages")
		b.do(chromedp.WaitVisible(chromedp.CSS(".chart canvas")))
		zone := got(b, chromedp.Evaluate[string](`document.querySelector("time").title`))
		require.Regexp(t, `CET|CEST|GMT\+[12]`, zone) // the browser's zone
		b.do(chromedp.KeyEvent("?"))
		b.sees("Next or previous row")
		b.do(chromedp.KeyEvent(kb.Escape), chromedp.KeyEvent("/"))
		at := got(b, chromedp.Evaluate[string](`(document.activeElement.value = "", document.activeElement.id)`))
		require.Equal(t, "search", at)
		b.do(chromedp.SendKeys(chromedp.CSS("#search"), "ord"+kb.Enter))
		b.sees("1 topic with “ord” in the name")
	})
}

// The page works without scripts, except that it is not live and has no charts.
func TestThePageNeedsNoScripts(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		s.publish(topic, time.Hour, "x")
		b := open(t, "about:blank", withoutScripts)
		b.do(chromedp.Navigate(s.address + "/topic?t=" + topic))
		b.click("Pause or resume")
		b.click("Pause")
		b.do(chromedp.WaitVisible(chromedp.CSS(`.banner[role=status]`)))
		require.NotNil(t, s.stats().Pause)
	})
}

// A viewer has no button that changes anything.
func TestAViewerHasNoButtons(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, server redistest.Server) {
		s := serve(t, server, dashboard.User{Name: "vera", Role: dashboard.Viewer})
		s.die(1, 1)
		s.publish(topic, time.Hour, "secret")
		s.recur(topic, recurring)
		pages := s.pages(topic)
		for _, name := range []string{"topic", "message", "dead", "schedules", "schedule"} {
			b := open(t, s.address+pages[name])
			b.sees("read-only")
			posts := got(b, chromedp.Evaluate[[]json.RawMessage](`[...document.querySelectorAll("form[method=post], a[href*='/confirm']")].map((e) => e.outerHTML)`))
			posts = slices.DeleteFunc(posts, func(form json.RawMessage) bool { return strings.Contains(string(form), `action=\"/check\"`) })
			require.Empty(t, posts, name)
			require.NotContains(t, b.text(), "secret", name)
			b.close()
		}
	})
}
