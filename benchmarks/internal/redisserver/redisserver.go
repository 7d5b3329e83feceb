// Package redisserver starts Redis servers that nobody else uses, and reads what they have spent.
package redisserver

import (
	"cmp"
	"context"
	"errors"
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

// Server is a Redis server that a program of this module measures.
type Server struct {
	Addr  string
	Admin *redis.Client
	end   func()
}

// leash runs a server until standard input ends, which it does however this process ends.
const leash = `
	trap '' INT TERM
	dir=$(mktemp -d)
	"$0" "$@" --dir "$dir" >/dev/null &
	cat
	kill -9 $!
	rm -rf "$dir"`

// Start starts a server without persistence on a free port, and returns when it answers. Its binary
// is REDIS_SERVER_BIN, or redis-server. It ends with Stop, or with this process.
func Start() (*Server, error) {
	bin, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER_BIN"), "redis-server"))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // finds a free port
	if err != nil {
		return nil, err
	}
	addr := listener.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	if err := listener.Close(); err != nil {
		return nil, err
	}
	cmd := exec.Command("sh", "-c", leash, bin, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return connect(addr, func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
}

// Use uses a server that runs. It has to be empty, because programs of this module empty it.
func Use(addr string) (*Server, error) {
	s, err := connect(addr, func() {})
	if err != nil {
		return nil, err
	}
	keys, err := s.Admin.DBSize(context.Background()).Result()
	if err == nil && keys > 0 {
		err = fmt.Errorf("has %d keys; the benchmarks need an empty server, since they empty it", keys)
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("redis at %s: %w", addr, err)
	}
	return s, nil
}

func connect(addr string, end func()) (*Server, error) {
	s := &Server{Addr: addr, Admin: redis.NewClient(&redis.Options{Addr: addr}), end: end}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := s.Admin.Ping(context.Background()).Err()
		if err == nil {
			return s, nil
		}
		if time.Now().After(deadline) {
			s.Stop()
			return nil, fmt.Errorf("redis at %s: %w", addr, err)
		}
	}
}

// Stop ends a server of Start.
func (s *Server) Stop() {
	_ = s.Admin.Close()
	s.end()
}

// Info returns a section of the server's INFO, by field.
func (s *Server) Info(section string) (map[string]string, error) {
	text, err := s.Admin.Info(context.Background(), section).Result()
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

// CPU returns the processor time that the server has used.
func (s *Server) CPU() (time.Duration, error) {
	info, err := s.Info("cpu")
	if err != nil {
		return 0, err
	}
	user, errUser := strconv.ParseFloat(info["used_cpu_user"], 64)
	system, errSystem := strconv.ParseFloat(info["used_cpu_sys"], 64)
	return time.Duration((user + system) * float64(time.Second)), errors.Join(errUser, errSystem)
}

// Memory returns how many bytes the server holds.
func (s *Server) Memory() (int64, error) {
	info, err := s.Info("memory")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(info["used_memory"], 10, 64)
}

// Calls are the calls of a command since the server started.
type Calls struct {
	N      int64
	Micros int64 // that they took. Those of a script include those of its commands.
}

var callsOfCommand = regexp.MustCompile(`^calls=(\d+),usec=(\d+)`)

// Commands returns the calls of each command, those that scripts made included.
func (s *Server) Commands() (map[string]Calls, error) {
	info, err := s.Info("commandstats")
	if err != nil {
		return nil, err
	}
	return parseCommands(info)
}

func parseCommands(info map[string]string) (map[string]Calls, error) {
	commands := map[string]Calls{}
	for name, value := range info {
		found := callsOfCommand.FindStringSubmatch(value)
		if found == nil {
			return nil, fmt.Errorf("INFO commandstats has %s:%s", name, value)
		}
		n, errN := strconv.ParseInt(found[1], 10, 64)
		micros, errMicros := strconv.ParseInt(found[2], 10, 64)
		if err := errors.Join(errN, errMicros); err != nil {
			return nil, err
		}
		commands[strings.TrimPrefix(name, "cmdstat_")] = Calls{N: n, Micros: micros}
	}
	return commands, nil
}

// OfConnection returns whether a command makes or keeps a connection. No script calls such a one.
func OfConnection(command string) bool {
	switch command, _, _ := strings.Cut(command, "|"); command {
	case "hello", "client", "ping", "subscribe", "unsubscribe", "psubscribe", "punsubscribe":
		return true
	}
	return false
}

// OfAdmin returns whether only the measuring programs send a command.
func OfAdmin(command string) bool {
	switch command, _, _ := strings.Cut(command, "|"); command {
	case "info", "config", "slowlog", "flushall", "dbsize":
		return true
	}
	return false
}
