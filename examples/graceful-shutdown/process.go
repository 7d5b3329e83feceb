package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// worker is a worker process.
type worker struct {
	name  string
	cmd   *exec.Cmd
	tally *tally
	ended chan struct{} // closed when the process has ended
	err   error         // its error, set before that
}

// start starts this program as a worker. When ctx ends, the worker is stopped as by stop.
func start(ctx context.Context, server *example.Redis, name string, t *tally) (*worker, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-worker", name, "-prefix", server.KeyPrefix)
	cmd.Env = append(os.Environ(), "REDIS_ADDR="+server.Addr)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second // killed after this time
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	w := &worker{name: name, cmd: cmd, tally: t, ended: make(chan struct{})}
	fmt.Printf("%s: started\n", name)
	go w.follow(stdout)
	return w, nil
}

// follow counts the jobs that the worker reports, until it ends.
func (w *worker) follow(stdout io.Reader) {
	defer close(w.ended)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if job, ok := strings.CutPrefix(lines.Text(), doneLine+" "); ok {
			w.tally.count(w.name, job)
		}
	}
	w.err = w.cmd.Wait()
}

// stop sends a SIGTERM, as in a deployment, and waits for the worker's end. It must end by itself,
// with status 0.
func (w *worker) stop() error {
	told, before := time.Now(), w.tally.of(w.name)
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		<-w.ended
		return fmt.Errorf("%s: %w: %w", w.name, err, w.err)
	}
	<-w.ended
	if w.err != nil {
		return fmt.Errorf("%s: %w", w.name, w.err)
	}
	done := w.tally.of(w.name)
	fmt.Printf("%s: ended %d ms after its SIGTERM, %d jobs done, %d of them since\n",
		w.name, time.Since(told).Milliseconds(), done, done-before)
	return nil
}
