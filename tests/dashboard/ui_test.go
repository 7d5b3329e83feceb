package dashboard

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// tool is the built command redisdelay. TestMain removes it.
var tool struct {
	once sync.Once
	dir  string
	err  error
}

// ui runs "redisdelay ui" with some settings until the test ends, and returns the page's address.
func ui(t *testing.T, s redistest.Server, environment []string, args ...string) (address string) {
	t.Helper()
	tool.once.Do(func() {
		if tool.dir, tool.err = os.MkdirTemp("", "redisdelay-ui"); tool.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", filepath.Join(tool.dir, "redisdelay"), ".")
		build.Dir = "../../cmd/redisdelay"
		if said, err := build.CombinedOutput(); err != nil {
			tool.err = fmt.Errorf("%w: %s", err, said)
		}
	})
	require.NoError(t, tool.err)
	options := s.Client.(*redis.Client).Options()
	cmd := exec.Command(filepath.Join(tool.dir, "redisdelay"), append([]string{"ui", "--listen", "127.0.0.1:0", "--redis", options.Addr,
		"--redis-db", fmt.Sprint(options.DB), "--key-prefix", s.Prefix}, args...)...)
	cmd.Env = append(os.Environ(), environment...)
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	found := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			if at := regexp.MustCompile(`http://[0-9.:]+`).FindString(lines.Text()); at != "" {
				select {
				case found <- at:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
	})
	select {
	case address = <-found:
	case <-time.After(patience):
		require.FailNow(t, "the page does not start")
	}
	return address
}

// withUI runs a test over a real server.
func withUI(t *testing.T, test func(t *testing.T, s *site)) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, server redistest.Server) { test(t, serve(t, server, operator)) })
}

// A proxy in front of the page strips its prefix. All links, files, news and forms work, and other
// sites change nothing through it.
func TestUIWorksBehindAProxyThatStripsThePrefix(t *testing.T) {
	withUI(t, func(t *testing.T, s *site) {
		s.register()
		s.publish(topic, time.Hour, "x")
		var inner *url.URL
		var stripping sync.Mutex
		names := true // the proxy names the prefix
		proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(inner)
			r.SetXForwarded()
			r.Out.Header.Set("Via", "1.1 proxy")
			r.Out.Header.Del("X-Forwarded-Prefix")
			stripping.Lock()
			defer stripping.Unlock()
			if names {
				r.Out.Header.Set("X-Forwarded-Prefix", "/ops/delays")
			}
		}}
		outside := httptest.NewServer(http.StripPrefix("/ops/delays", proxy))
		t.Cleanup(outside.Close)
		t.Cleanup(outside.CloseClientConnections)
		address := ui(t, s.Server, nil, "--write", "--as", "olga", "--proxies", "127.0.0.1/32", "--public-url", outside.URL+"/ops/delays")
		var err error
		inner, err = url.Parse(address)
		require.NoError(t, err)
		for _, says := range []bool{true, false} { // else the path of --public-url counts
			stripping.Lock()
			names = says
			stripping.Unlock()
			b := open(t, outside.URL+"/ops/delays/")
			b.sees("Live", topic, "olga")
			b.click(topic)
			b.sees("Becomes due in the next hour")
			b.click("Pause or resume")
			if says {
				b.click("Pause")
				b.sees("Paused. Messages still become ready")
			} else {
				b.click("Resume")
				b.sees("Resumed.")
			}
			require.Equal(t, says, s.paused(topic))
			b.click("Audit log")
			b.sees("olga")
			b.close()
		}
		require.Equal(t, []string{"olga resume", "olga pause"}, s.acts())

		evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintf(w, `<form method="post" action="%s/ops/delays/pause"><input name="t" value="%s"><button>Win</button></form>`, outside.URL, topic)
		}))
		t.Cleanup(evil.Close)
		b := open(t, evil.URL)
		b.click("Win")
		b.sees("comes from another site")
		require.False(t, s.paused(topic))
		b = open(t, strings.Replace(address, "127.0.0.1", "localhost", 1)) // and without the proxy it works on this machine
		b.sees("Live", topic)
	})
}

// paused returns whether a topic is paused.
func (s *site) paused(topic string) bool {
	s.t.Helper()
	stats, err := s.admin.Stats(ctx, topic)
	require.NoError(s.t, err)
	return stats.Pause != nil
}

func TestUIHidesSecretsInTheBrowser(t *testing.T) {
	withUI(t, func(t *testing.T, s *site) {
		msg := message.NewMessage("u", []byte(`{"customer":"seen","accessToken":"hush","body":"{\"client_secret\":\"hush\"}"}`))
		msg.Metadata.Set("X-Api-Key", "hush")
		redisdelay.SetDelayID(msg, "named", redisdelay.DelayIDReplace)
		redisdelay.DelayFor(msg, time.Hour)
		long := message.NewMessage("v", []byte("["+strings.Repeat(`{"password":"hush","a":1},`, 300_000)+"1]"))
		redisdelay.SetDelayID(long, "long", redisdelay.DelayIDReplace)
		redisdelay.DelayFor(long, time.Hour)
		require.NoError(t, testkit.NewPublisher(t, s.Server).Publish(topic, msg, long))
		address := ui(t, s.Server, nil, "--contents")
		b := open(t, address+"/message?t="+topic+"&name=named")
		b.do(script(`document.querySelectorAll("details").forEach((d) => d.open = true)`))
		b.sees("seen", "[hidden]", "accessToken")
		require.NotContains(t, b.text(), "hush")
		b.close()
		b = open(t, address+"/message?t="+topic+"&name=long")
		b.sees("Live", "Only the beginning is shown.", "[hidden]")
		require.NotContains(t, b.text(), "hush")
		b.close()
		b = open(t, ui(t, s.Server, nil, "--contents", "--redact=")+"/message?t="+topic+"&name=named")
		b.sees("hush")
	})
}

// While somebody guesses at one address, another browser is asked for its password and signs in.
func TestUILetsOthersSignInWhileSomebodyGuesses(t *testing.T) {
	withUI(t, func(t *testing.T, s *site) {
		s.register()
		address := ui(t, s.Server, []string{"REDISDELAY_UI_PASSWORD=tea"}, "--ui-user", "ann", "--proxies", "127.0.0.1/32")
		done := make(chan struct{})
		var guessing sync.WaitGroup
		for range 12 {
			guessing.Go(func() {
				for {
					r, _ := http.NewRequest(http.MethodGet, address, nil)
					r.SetBasicAuth("ann", "guess")
					r.Header.Set("X-Forwarded-For", "203.0.113.9")
					if answer, err := http.DefaultClient.Do(r); err == nil {
						_ = answer.Body.Close()
					}
					select {
					case <-done:
						return
					default:
					}
				}
			})
		}
		t.Cleanup(guessing.Wait)
		t.Cleanup(func() { close(done) })
		b := open(t, strings.Replace(address, "http://", "http://ann:tea@", 1))
		b.sees("Live", topic, "ann", "read-only")
	})
}
