package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// server is the Redis server that everything runs on. It is the benchmarks' own: they empty it, and
// read its statistics.
type server struct {
	addr  string
	admin *redis.Client
	stop  func()
}

// startServer uses the server at REDIS_ADDR, or starts one without persistence.
func startServer() (*server, error) {
	s := &server{addr: os.Getenv("REDIS_ADDR"), stop: func() {}}
	if s.addr == "" {
		if err := s.launch(); err != nil {
			return nil, fmt.Errorf("start a server: %w", err)
		}
	}
	s.admin = redis.NewClient(&redis.Options{Addr: s.addr})
	err := s.awaitPong()
	if err == nil {
		err = s.checkEmpty()
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("redis at %s: %w", s.addr, err)
	}
	return s, nil
}

// leash runs a server until standard input ends, which it does however this process ends.
const leash = `
	trap '' INT TERM
	dir=$(mktemp -d)
	"$0" "$@" --dir "$dir" >/dev/null &
	cat
	kill -9 $!
	rm -rf "$dir"`

func (s *server) launch() error {
	bin, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER_BIN"), "redis-server"))
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // finds a free port
	if err != nil {
		return err
	}
	s.addr = listener.Addr().String()
	_, port, _ := net.SplitHostPort(s.addr)
	if err := listener.Close(); err != nil {
		return err
	}
	cmd := exec.Command("sh", "-c", leash, bin, "--port", port, "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no")
	end, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	s.stop = func() {
		_ = end.Close()
		_ = cmd.Wait()
	}
	return cmd.Start()
}

func (s *server) awaitPong() error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := s.admin.Ping(ctx).Err()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// checkEmpty keeps the benchmarks from emptying a server that is somebody's.
func (s *server) checkEmpty() error {
	keys, err := s.admin.DBSize(ctx).Result()
	if err == nil && keys > 0 {
		err = fmt.Errorf("has %d keys; the benchmarks need an empty server, since they empty it", keys)
	}
	return err
}

// info is a section of the server's INFO.
func (s *server) info(section string) (map[string]string, error) {
	text, err := s.admin.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			found[name] = value
		}
	}
	return found, nil
}

// cpu is the processor time that the server has used.
func (s *server) cpu() (time.Duration, error) {
	info, err := s.info("cpu")
	if err != nil {
		return 0, err
	}
	user, err := strconv.ParseFloat(info["used_cpu_user"], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(info["used_cpu_sys"], 64)
	return time.Duration((user + system) * float64(time.Second)), err
}

// memory is how many bytes the server holds.
func (s *server) memory() (int64, error) {
	info, err := s.info("memory")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(info["used_memory"], 10, 64)
}

var callsOfCommand = regexp.MustCompile(`^calls=(\d+)`)

// commands is how often the server ran which command, those inside scripts included.
func (s *server) commands() (map[string]int64, error) {
	info, err := s.info("commandstats")
	if err != nil {
		return nil, err
	}
	calls := map[string]int64{}
	for name, value := range info {
		found := callsOfCommand.FindStringSubmatch(value)
		if found == nil {
			return nil, fmt.Errorf("INFO commandstats has %s:%s", name, value)
		}
		n, err := strconv.ParseInt(found[1], 10, 64)
		if err != nil {
			return nil, err
		}
		calls[strings.TrimPrefix(name, "cmdstat_")] = n
	}
	return calls, nil
}
