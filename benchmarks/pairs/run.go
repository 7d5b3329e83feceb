package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/internal/redisserver"
)

// runJob runs a job of a tree on a new server. The server's statistics are read here, since a tree
// may be older than the metrics of its benchmarks.
func runJob(ctx context.Context, j job, t *tree, smoke bool) ([]row, error) {
	server, err := redisserver.Start()
	if err != nil {
		return nil, err
	}
	defer server.Stop()
	if j.per == 0 {
		return runLife(ctx, j, t, server, smoke)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(t.bins, j.bin), j.args(smoke)...)
	cmd.Dir = filepath.Join(t.dir, j.pkg)
	cmd.Env = append(os.Environ(), "REDIS_ADDR="+server.Addr, "REDISTEST_REQUIRED=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	rows, err := j.parse(string(out))
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	spent, err := read(server)
	if err != nil {
		return nil, err
	}
	spent.enter(rows[0].figures, j.size(smoke)*j.per)
	return rows, nil
}

// runLife runs the program life, and reads the server's statistics before and after each phase.
func runLife(ctx context.Context, j job, t *tree, server *redisserver.Server, smoke bool) (rows []row, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(t.bins, j.bin), "-addr", server.Addr, "-messages", strconv.Itoa(j.size(smoke)))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close(), cmd.Wait()) }()
	lines := bufio.NewScanner(out)
	for range 3 {
		before, err := read(server)
		if err != nil {
			return nil, err
		}
		cpu, err := server.CPU()
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(in, "\n"); err != nil {
			return nil, err
		}
		if !lines.Scan() {
			return nil, errors.Join(errors.New("it ended early"), lines.Err())
		}
		var said struct {
			Phase    string
			Messages int
			Seconds  float64
			Allocs   float64
		}
		if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		cpuAfter, err := server.CPU()
		if err != nil {
			return nil, err
		}
		after, err := read(server)
		if err != nil {
			return nil, err
		}
		n := float64(said.Messages)
		found := figures{rate: n / said.Seconds, allocs: said.Allocs / n,
			redisCPU: float64(cpuAfter-cpu) / float64(time.Microsecond) / n}
		after.minus(before).enter(found, said.Messages)
		rows = append(rows, row{name: j.name + ": " + said.Phase, figures: found})
	}
	return rows, nil
}

// statistics are what a server has spent, by INFO commandstats.
type statistics struct {
	commands int64 // that it has run, those of scripts too
	micros   int64 // in scripts
}

func read(server *redisserver.Server) (statistics, error) {
	commands, err := server.Commands()
	return total(commands), err
}

// total leaves out what only this program sends. The time of a script includes that of its
// commands.
func total(commands map[string]redisserver.Calls) (s statistics) {
	for name, calls := range commands {
		if redisserver.OfAdmin(name) {
			continue
		}
		s.commands += calls.N
		if name == "evalsha" || name == "eval" {
			s.micros += calls.Micros
		}
	}
	return s
}

func (s statistics) minus(before statistics) statistics {
	return statistics{s.commands - before.commands, s.micros - before.micros}
}

// enter adds the statistics of n messages to figures.
func (s statistics) enter(f figures, n int) {
	f[commands] = float64(s.commands) / float64(n)
	f[redisTime] = float64(s.micros) / float64(n)
}
