package dashboard_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// odd is a name that no browser leaves as it is.
const odd = "odd\xff\x00\r\n\n\x1b name"

var (
	inForm = regexp.MustCompile(`(?s)<form([^>]*)>(.*?)</form>`)
	field  = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)"`)
	choice = regexp.MustCompile(`(?s)<select name="([^"]*)">(.*?)</select>`)
	option = regexp.MustCompile(`<option value="([^"]*)"`)
)

// fields returns what a browser sends for the form of a page with an action, or of one that has a
// text: the fields that nobody types, and the last one of each choice.
func (s *site) fields(address, has string) (form []string) {
	s.t.Helper()
	status, body := s.get(address)
	require.Equal(s.t, http.StatusOK, status, address)
	sent := func(value string) string { // as HTML and its forms have it
		value = strings.ReplaceAll(strings.ToValidUTF8(html.UnescapeString(value), "\ufffd"), "\x00", "\ufffd")
		return regexp.MustCompile(`\r\n|\r|\n`).ReplaceAllString(value, "\r\n")
	}
	for _, m := range inForm.FindAllStringSubmatch(body, -1) {
		if !strings.Contains(m[1]+m[2], has) {
			continue
		}
		for _, f := range field.FindAllStringSubmatch(m[2], -1) {
			form = append(form, f[1], sent(f[2]))
		}
		for _, c := range choice.FindAllStringSubmatch(m[2], -1) {
			all := option.FindAllStringSubmatch(c[2], -1)
			form = append(form, c[1], sent(all[len(all)-1][1]))
		}
		return form
	}
	require.Fail(s.t, "no such form", "%s of %s", has, address)
	return nil
}

// Names are any bytes. The forms of the page work for each of them.
func TestFormsWorkForEveryName(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die(odd, odd, "other")
	sub := testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup = odd })
	require.NoError(t, sub.SubscribeInitialize(odd))
	id := s.publish(odd, time.Hour, nil, "x")
	s.recur(daily(odd, odd))
	q := url.QueryEscape(odd)

	status, _ := s.post("/pause", s.fields("/topic?t="+q, "/pause")...)
	require.Equal(t, http.StatusSeeOther, status)
	stats, err := s.admin.Stats(ctx, odd)
	require.NoError(t, err)
	paused := map[string]bool{}
	for _, g := range stats.Groups {
		paused[g.Group] = g.Pause != nil
	}
	require.Equal(t, map[string]bool{"g": false, odd: true}, paused)

	status, _ = s.post("/limit/set", append(s.fields("/topic?t="+q, "/limit/set"), "at-once", "3")...)
	require.Equal(t, http.StatusSeeOther, status)
	stats, err = s.admin.Stats(ctx, odd)
	require.NoError(t, err)
	for _, g := range stats.Groups {
		require.Equal(t, g.Group == odd, g.Limit.Set)
	}

	status, to := s.post("/check", s.fields("/topic?t="+q, "/check")...)
	require.Equal(t, http.StatusSeeOther, status)
	s.ends(to)
	status, _ = s.post("/message/later", append(s.fields("/message?t="+q+"&id="+id, "/message/now"), "in", "2h")...)
	require.Equal(t, http.StatusSeeOther, status)
	status, _ = s.post("/schedule/pause", s.fields("/schedule?t="+q+"&s="+q, "/schedule/pause")...)
	require.Equal(t, http.StatusSeeOther, status)
	require.NotNil(t, s.schedule(odd, odd).Pause)

	values := url.Values{} // of a form that is sent with GET
	form := s.fields("/messages?t="+q, `class="filter`)
	for i := 0; i < len(form); i += 2 {
		values.Set(form[i], form[i+1])
	}
	_, body := s.get("/messages?" + values.Encode())
	require.Contains(t, body, id)

	reasons, err := s.admin.DeadReasons(ctx, odd, admin.Bulk{Group: "g"})
	require.NoError(t, err)
	address := "/confirm?do=purge&g=g&t=" + q
	for _, r := range reasons.Reasons {
		if strings.HasPrefix(r.Reason, "odd") {
			address += "&reason=" + url.QueryEscape(r.Reason)
		}
	}
	form = append(s.fields(address, "/confirm"), "typed-count", "1", "typed-name")
	status, _ = s.post("/confirm", append(form, "od name")...)
	require.Equal(t, http.StatusBadRequest, status)
	status, to = s.post("/confirm", append(form, "odd\ufffd name")...) // as it is seen
	require.Equal(t, http.StatusSeeOther, status)
	require.Contains(t, s.ends(to), "<strong>Done</strong>: 1 of 1")
	stats, err = s.admin.Stats(ctx, odd)
	require.NoError(t, err)
	for _, g := range stats.Groups {
		require.Equal(t, g.Group == "g", g.Dead == 1)
	}
}

// The longest name can be typed, and one that can be typed has to be.
func TestNamesHaveToBeTyped(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	for name, right := range map[string]string{strings.Repeat("ä", redisdelay.MaxTopicLength/2): "", "two words": "", "tab\there": "tabhere"} {
		s.publish(name, time.Hour, nil, "x")
		if right == "" {
			right = name
		}
		_, body := s.get("/confirm?do=remove-topic&t=" + url.QueryEscape(name))
		longest, err := strconv.Atoi(regexp.MustCompile(`name="typed-name" value="" required maxlength="(\d+)"`).FindStringSubmatch(body)[1])
		require.NoError(t, err)
		require.GreaterOrEqual(t, longest, len(right))
		form := []string{"do", "remove-topic", "t", name, "count", "1", "typed-count", "1", "typed-name"}
		for _, wrong := range []string{"", strings.ReplaceAll(right, " ", ""), "X" + right} {
			if wrong != right {
				status, _ := s.post("/confirm", append(form, wrong)...)
				require.Equal(t, http.StatusBadRequest, status, wrong)
			}
		}
		status, _ := s.post("/confirm", append(form, right)...)
		require.Equal(t, http.StatusSeeOther, status, name)
	}
}
