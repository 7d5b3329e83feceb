package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// page starts the command ui, and returns the address that it prints.
func page(t *testing.T, environment []string, args ...string) (p *tool, address string) {
	t.Helper()
	p = start(t, environment, append([]string{"ui", "--listen", "127.0.0.1:0"}, args...)...)
	said := regexp.MustCompile(`http://[0-9.:]+/`)
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		address = said.FindString(p.logged.String())
		return address != ""
	}, patience, 10*time.Millisecond)
	return p, address
}

func loaded(t *testing.T, request *http.Request) (status int, body string) {
	t.Helper()
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

func TestUIShowsLivingSampleTraffic(t *testing.T) {
	t.Parallel()
	_, address := page(t, nil, "--demo")
	get := func() string {
		request, err := http.NewRequest(http.MethodGet, address, nil)
		require.NoError(t, err)
		_, body := loaded(t, request)
		return body
	}
	require.Eventually(t, func() bool {
		body := get()
		for _, topic := range []string{"mails", "payments", "reminders", "reports", "unpaid-orders", "webhooks"} {
			if !strings.Contains(body, topic) {
				return false
			}
		}
		return !strings.Contains(body, "read-only") && strings.Contains(body, "What needs you")
	}, patience, 100*time.Millisecond)
	body := get()
	require.NotContains(t, body, "Of Redis", "the demo warns about its own server")
	require.Contains(t, body, "2 problems ignored")
}

// One setting has the page and the other commands use UTC.
func TestUIShowsTimesInUTC(t *testing.T) {
	t.Parallel()
	for flag, zone := range map[string]string{"--utc": ` data-zone="UTC"`, "--utc=false": ""} {
		_, address := page(t, nil, "--demo", flag)
		request, err := http.NewRequest(http.MethodGet, address, nil)
		require.NoError(t, err)
		_, body := loaded(t, request)
		require.Contains(t, body, `<html lang="en"`+zone+">")
	}
}

func TestUIAsksForThePassword(t *testing.T) {
	t.Parallel()
	p, address := page(t, []string{"REDISDELAY_UI_PASSWORD=tea", "REDISDELAY_REDIS=localhost:1"}, "--ui-user", "ann")
	request, err := http.NewRequest(http.MethodGet, address+"assets/app.css", nil)
	require.NoError(t, err)
	status, _ := loaded(t, request)
	require.Equal(t, http.StatusOK, status)
	request, err = http.NewRequest(http.MethodGet, address, nil)
	require.NoError(t, err)
	status, _ = loaded(t, request)
	require.Equal(t, http.StatusUnauthorized, status)
	request.SetBasicAuth("ann", "tea")
	require.Eventually(t, func() bool {
		status, body := loaded(t, request)
		return status == http.StatusBadGateway && strings.Contains(body, "Redis does not answer") && strings.Contains(body, "read-only")
	}, patience, 50*time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NotContains(t, p.logged.String(), "tea")
}

func TestUIRefusesUnsafeSettings(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--listen :0":           "without Authenticate",
		"--ui-user ann":         "REDISDELAY_UI_PASSWORD",
		"--proxy-header X-User": "--proxies",
		"--proxy-header X-User --proxies 10.0.0.5":       "is no network",
		"--path redisdelay/":                             "Prefix",
		"--hosts https://ops.example.com":                "Hosts",
		"--ui-user ann --proxy-header X --proxies ::1/1": "one of them",
		"--ui-password tea":                              "visible to everybody",
	} {
		status, _, said := says([]string{"REDISDELAY_REDIS=localhost:1"}, append([]string{"ui"}, strings.Fields(args)...)...)
		require.Equal(t, exitRefused, status, args)
		require.Contains(t, said, want, args)
		require.NotContains(t, said, "ui-password tea")
	}
}

// A page with contents, over a topic whose message has secrets.
func (w *world) secretPage(t *testing.T, environment []string, args ...string) (body string) {
	t.Helper()
	_, address := page(t, append(w.environment(), environment...), append([]string{"--contents"}, args...)...)
	request, err := http.NewRequest(http.MethodGet, address+"message?t=orders&name=named", nil)
	require.NoError(t, err)
	status, body := loaded(t, request)
	require.Equal(t, http.StatusOK, status, body)
	return body
}

func newSecrets(t *testing.T) *world {
	t.Helper()
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	w.publish("orders", "u", `{"accessToken":"hush-1","client_secret":"hush-2","body":"{\"password\":\"hush-3\"}","customer":"seen-1"}`+"\n"+`{"password":"hush-4"}`,
		redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, "named", "X-Api-Key", "hush-5", "headers", `{"cookie":"hush-6"}`, "broken", `{"password":"hush-7"`, "place", "seen-2")
	return w
}

// Without --redact the usual names are hidden. A list takes their place, and an empty flag hides
// none.
func TestUIRedactsUnlessItIsToldOtherwise(t *testing.T) {
	t.Parallel()
	w := newSecrets(t)
	shows := func(body string) (shown []string) {
		for _, secret := range []string{"hush-1", "hush-2", "hush-3", "hush-4", "hush-5", "hush-6", "hush-7", "seen-1", "seen-2"} {
			if strings.Contains(body, secret) {
				shown = append(shown, secret)
			}
		}
		return shown
	}
	all := []string{"hush-1", "hush-2", "hush-3", "hush-4", "hush-5", "hush-6", "seen-1", "seen-2"}
	usual := []string{"seen-1", "seen-2"}
	require.Equal(t, usual, shows(w.secretPage(t, nil)), "absent")
	require.Equal(t, usual, shows(w.secretPage(t, []string{"REDISDELAY_REDACT="})), "an empty variable is none")
	require.Equal(t, usual, shows(w.secretPage(t, nil, "--config", file(t, "redact ="))), "an empty line of the file is none")
	require.Equal(t, all, shows(w.secretPage(t, nil, "--redact=")), "an empty flag hides no name; what cannot be read stays hidden")
	require.Equal(t, all[1:7], shows(w.secretPage(t, nil, "--redact", "access_token,PLACE")), "a list takes the place of the usual names")
	require.Equal(t, all[1:7], shows(w.secretPage(t, []string{"REDISDELAY_REDACT=access_token,place"})))
	status, _, said := says([]string{"REDISDELAY_REDIS=localhost:1"}, "ui", "--redact=a,-")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "Redact")
}

// A setting that is there and empty, such as by an unset variable of a shell, does not open the
// page.
func TestUIRefusesEmptySettings(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"listen", "hosts", "public-url", "ui-user", "ui-password-file", "proxy-header", "proxies", "as"} {
		for _, args := range [][]string{{"--" + name + "="}, {"--" + name, ""}} {
			status, _, said := says([]string{"REDISDELAY_REDIS=localhost:1"}, append([]string{"ui"}, args...)...)
			require.Equal(t, exitRefused, status, args)
			require.Contains(t, said, "--"+name+" is empty", args)
		}
		_, address := page(t, []string{"REDISDELAY_REDIS=localhost:1", variable(name) + "="}) // as if it were absent
		require.Contains(t, address, "http://127.0.0.1:")
	}
	_, address := page(t, []string{"REDISDELAY_REDIS=localhost:1"}, "--path=")
	require.Regexp(t, `^http://127\.0\.0\.1:\d+/$`, address)
	for _, args := range []string{"--write=", "--contents=", "--demo="} {
		status, _, _ := says([]string{"REDISDELAY_REDIS=localhost:1"}, "ui", args)
		require.Equal(t, exitRefused, status, args)
	}
}

// send sends a request with headers such as "Via: 1.1 proxy", and returns its status.
func send(t *testing.T, method, address string, headers ...string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequest(method, address, strings.NewReader("t=orders"))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if name == "Host" {
			request.Host = value
		}
		request.Header.Set(name, value)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

func TestUIRefusesProxiesAndOtherSites(t *testing.T) {
	t.Parallel()
	w := newSecrets(t)
	const same = "Sec-Fetch-Site: same-origin"
	environment := w.environment()
	_, plain := page(t, environment, "--write")
	_, behind := page(t, environment, "--write", "--public-url", "https://ops.example.com/delays", "--proxies", "127.0.0.1/32")
	own := strings.TrimSuffix(plain, "/")
	for _, c := range []struct {
		address string
		headers []string
		want    int
	}{
		{plain, []string{same, "Origin: " + own}, http.StatusSeeOther},
		{plain, []string{same, "Origin: https://evil.example.com"}, http.StatusForbidden},
		{plain, []string{same, "Origin: " + own, "Via: 1.1 proxy"}, http.StatusForbidden},
		{plain, []string{same, "Origin: " + own, "X-Forwarded-Host: localhost"}, http.StatusForbidden},
		{plain, []string{same, "Origin: " + own, "X-Forwarded-Proto: https"}, http.StatusForbidden},
		{behind, []string{same, "Origin: https://ops.example.com", "Via: 1.1 proxy", "Host: ops.example.com"}, http.StatusSeeOther},
		{behind, []string{same, "Origin: https://ops.example.com", "Via: 1.1 proxy"}, http.StatusSeeOther},
		{behind, []string{same, "Origin: https://evil.example.com", "Via: 1.1 proxy"}, http.StatusForbidden},
	} {
		status, body := send(t, http.MethodPost, c.address+"pause", c.headers...)
		require.Equal(t, c.want, status, "%q: %s", c.headers, body)
	}
	for header, base := range map[string]string{"X-Forwarded-Prefix: /ops": "/ops/", "X-Forwarded-For: 203.0.113.9": "/delays/", "Accept: text/html": "/"} {
		status, body := send(t, http.MethodGet, behind+"topic?t=orders", header)
		require.Equal(t, http.StatusOK, status, body)
		require.Contains(t, body, `href="`+base+`schedules"`, header)
	}
	status, _, said := says(environment, "ui", "--public-url", "ops.example.com")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "PublicURL")
}

// Guesses of one address are few, and lock out nobody elsewhere.
func TestUILimitsGuesses(t *testing.T) {
	t.Parallel()
	w := newSecrets(t)
	_, address := page(t, append(w.environment(), "REDISDELAY_UI_PASSWORD=tea"), "--ui-user", "ann", "--proxies", "127.0.0.1/32")
	basic := func(password string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("ann:"+password))
	}
	const guesses = 60
	answers := make(chan int, guesses)
	for range guesses {
		go func() {
			status, _ := send(t, http.MethodGet, address, basic("guess"), "X-Forwarded-For: 203.0.113.9")
			answers <- status
		}()
	}
	for range guesses / 2 { // meanwhile
		status, _ := send(t, http.MethodGet, address, "X-Forwarded-For: 203.0.113.9")
		require.Equal(t, http.StatusUnauthorized, status, "a browser is asked for its password")
		status, _ = send(t, http.MethodGet, address, basic("tea"), "X-Forwarded-For: 203.0.113.10")
		require.Equal(t, http.StatusOK, status, "another address is locked out")
	}
	got := map[int]int{}
	for range guesses {
		got[<-answers]++
	}
	require.Equal(t, guesses, got[http.StatusUnauthorized]+got[http.StatusTooManyRequests], "%v", got)
	require.GreaterOrEqual(t, got[http.StatusTooManyRequests], guesses/2, "%v", got)
}

// Beyond this machine, without TLS and without a proxy that ends it, passwords can be read by
// others.
func TestUIWarnsWhenPasswordsAreUnencrypted(t *testing.T) {
	t.Parallel()
	environment := []string{"REDISDELAY_REDIS=localhost:1", "REDISDELAY_UI_PASSWORD=tea"}
	const warning = "cross the network unencrypted"
	for args, warns := range map[string]bool{"--listen 0.0.0.0:0": true, "--listen [::]:0": true, "--listen 127.0.0.1:0": false, "--listen 0.0.0.0:0 --proxies 10.0.0.5/32": false} {
		p := start(t, environment, append([]string{"ui", "--ui-user", "ann"}, strings.Fields(args)...)...)
		p.await(`The page is at (http://\S+)`)
		require.Equal(t, warns, strings.Contains(p.said(), warning), "%s: %s", args, p.said())
	}
}

// Acts of a page without a login are by --as, or else by user@host.
func TestActsOfUIAreByAs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environment, args []string
		headers           []string
		by                string
	}{
		"given":        {nil, []string{"--as", "olga"}, nil, "olga"},
		"a variable":   {[]string{"REDISDELAY_AS=olga"}, nil, nil, "olga"},
		"absent":       {nil, nil, nil, whoami()},
		"empty":        {[]string{"REDISDELAY_AS="}, nil, nil, whoami()},
		"with a login": {[]string{"REDISDELAY_UI_PASSWORD=tea"}, []string{"--as", "olga", "--ui-user", "ann"}, []string{"Authorization: Basic YW5uOnRlYQ=="}, "ann"},
		"with a proxy": {nil, []string{"--as", "olga", "--proxy-header", "X-User", "--proxies", "127.0.0.1/32"}, []string{"X-User: bob"}, "bob"},
	} {
		w := newSecrets(t)
		_, address := page(t, append(w.environment(), c.environment...), append([]string{"--write"}, c.args...)...)
		status, body := send(t, http.MethodPost, address+"pause", append(c.headers, "Origin: "+strings.TrimSuffix(address, "/"))...)
		require.Equal(t, http.StatusSeeOther, status, "%s: %s", name, body)
		acts, _, err := w.admin.Acts(t.Context(), "", 0)
		require.NoError(t, err)
		require.Len(t, acts, 1, name)
		require.Equal(t, c.by, acts[0].By, name)
	}
}

// An open page of a message of 8 MiB costs hardly any time of the CPU, nor do many visits.
func TestALongPayloadCostsThePageLittle(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	w.publish("orders", "u", "["+strings.Repeat(`{"id":12345,"name":"somebody","token":"x"},`, 190_000)+"1]", redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, "named")
	p, address := page(t, w.environment(), "--contents")
	address += "message?t=orders&name=named"
	status, body := send(t, http.MethodGet, address)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "Only the beginning is shown.")
	live, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	live.Header.Set("Accept", "text/event-stream")
	answer, err := http.DefaultClient.Do(live)
	require.NoError(t, err)
	defer answer.Body.Close()
	before, began := cpuTime(t, p.cmd.Process.Pid), time.Now()
	for events := bufio.NewScanner(answer.Body); time.Since(began) < 5*time.Second && events.Scan(); {
		require.NotContains(t, events.Text(), "somebody", "news have no payload")
	}
	used, span := cpuTime(t, p.cmd.Process.Pid)-before, time.Since(began)
	require.Less(t, used, span/5, "of the CPU in %v", span)
}

// cpuTime returns the time of the CPU that a process has used.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skip("this system does not tell: ", err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
	user, err := strconv.Atoi(fields[12])
	require.NoError(t, err)
	system, err := strconv.Atoi(fields[13])
	require.NoError(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}
