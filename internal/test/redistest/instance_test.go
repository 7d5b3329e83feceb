package redistest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var ctx = context.Background()

func TestKilledServerComesBackWithItsData(t *testing.T) {
	t.Parallel()
	in := Start(t, "--appendonly", "yes", "--appendfsync", "always")
	client := in.Client(t)
	require.NoError(t, client.Set(ctx, "key", "kept", 0).Err())

	in.Kill()
	require.Error(t, client.Ping(ctx).Err())

	in.Restart()
	require.Equal(t, "kept", client.Get(ctx, "key").Val())
}

func TestShutdownSavesTheData(t *testing.T) {
	t.Parallel()
	in := Start(t, "--save", "3600 1000000")
	client := in.Client(t)
	require.NoError(t, client.Set(ctx, "key", "kept", 0).Err())
	in.Shutdown()
	require.Error(t, client.Ping(ctx).Err())
	in.Restart()
	require.Equal(t, "kept", client.Get(ctx, "key").Val())
}

func TestRestartOfARunningServerKillsItFirst(t *testing.T) {
	t.Parallel()
	in := Start(t)
	client := in.Client(t)
	require.NoError(t, client.Set(ctx, "key", "in memory only", 0).Err())
	in.Restart()
	require.ErrorIs(t, client.Get(ctx, "key").Err(), redis.Nil)
}

func TestRestartCommandBringsAnotherProcessWithTheSameData(t *testing.T) {
	t.Parallel()
	in := Start(t, "--appendonly", "yes", "--appendfsync", "always")
	client := in.Client(t)
	require.NoError(t, client.Set(ctx, "key", "kept", 0).Err())
	before := in.pid(t)

	var wg sync.WaitGroup
	for range 3 { // at the same time, as Watermill's tests do
		wg.Go(func() {
			command := in.RestartCommand()
			if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()

	require.Equal(t, "kept", client.Get(ctx, "key").Val())
	require.NotEqual(t, before, in.pid(t))
}

func TestPausedServerAnswersAfterResume(t *testing.T) {
	t.Parallel()
	in := Start(t)
	client := in.Client(t)
	require.NoError(t, client.Ping(ctx).Err())

	in.Pause()
	soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- client.Ping(ctx).Err() }()
	select {
	case err := <-answered:
		t.Fatalf("a paused server answered: %v", err)
	case <-soon.Done():
	}

	in.Resume()
	require.NoError(t, <-answered)
}

func TestPortTakenByAnotherServerIsAvoided(t *testing.T) {
	t.Parallel()
	other := Start(t)
	taken := []int{other.port, other.port}
	in := (&Instance{t: t}).start(func() int {
		if len(taken) == 0 {
			return FreePort()
		}
		port := taken[0]
		taken = taken[1:]
		return port
	})
	require.NotEqual(t, other.Addr(), in.Addr())
	require.NotEqual(t, other.pid(t), in.pid(t))
}

func TestServersClockCanBeSet(t *testing.T) {
	t.Parallel()
	in := StartWithClock(t)
	client := in.Client(t)
	shift := func() time.Duration {
		now, err := client.Time(ctx).Result()
		require.NoError(t, err)
		return now.Sub(time.Now().Round(0)).Round(10 * time.Second)
	}
	require.Zero(t, shift())
	in.SetClock(2 * time.Hour)
	require.Equal(t, 2*time.Hour, shift())
	in.SetClock(-time.Hour)
	require.Equal(t, -time.Hour, shift())
	in.Restart()
	require.Equal(t, -time.Hour, shift())
}

func TestServersLocaleCanBeSet(t *testing.T) {
	t.Parallel()
	for want, in := range map[int]*Instance{1: Start(t), 0: StartWithLocale(t)} {
		got, err := in.Client(t).Eval(ctx, "return 'A' < 'B' and 1 or 0", nil).Int()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestServerEndsWithItsTest(t *testing.T) {
	t.Parallel()
	in := Start(t) // skips or fails in the same cases as the subtests
	t.Run("running", func(t *testing.T) { in = Start(t) })
	requireGone(t, in.Addr(), in.dir)
	t.Run("paused", func(t *testing.T) { in = Start(t); in.Pause() })
	requireGone(t, in.Addr(), in.dir)
	t.Run("restarted by command", func(t *testing.T) {
		in = Start(t)
		command := in.RestartCommand()
		require.NoError(t, exec.Command(command[0], command[1:]...).Run())
	})
	requireGone(t, in.Addr(), in.dir)
}

func TestServerEndsWithATestBinaryThatIsKilled(t *testing.T) {
	t.Parallel()
	const inChild = "REDISTEST_CHILD"
	if os.Getenv(inChild) == "1" {
		in := Start(t)
		fmt.Printf("\nserver %s %s\n", in.Addr(), in.dir)
		select {} // until it is killed
	}
	if serverBin() == "" {
		missing(t, "no redis-server")
	}
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), inChild+"=1")
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var addr, dir string
	for lines := bufio.NewScanner(out); dir == "" && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "server %s %s", &addr, &dir)
	}
	require.NotEmpty(t, dir)
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	requireGone(t, addr, dir)
}

// requireGone waits for the end of a server and the removal of its directory.
func requireGone(t *testing.T, addr, dir string) {
	t.Helper()
	require.Eventually(t, func() bool {
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			return false
		}
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	}, 10*time.Second, 10*time.Millisecond, "%s or %s is still there", addr, dir)
}

func (in *Instance) pid(t *testing.T) int {
	text, err := os.ReadFile(in.path("ready"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(string(text))
	require.NoError(t, err)
	return pid
}
