package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/test/machine"
)

const (
	producers = 32
	batch     = 100

	phaseLimit = 20 * time.Minute // nothing that works takes so long
)

var versionNumber = regexp.MustCompile(`\d+\.\d+[0-9.]*`)

// bench is what all systems are measured with.
type bench struct {
	dir   string // for programs and data
	sizes sizes
	tries int // how often a phase is run at most, until the machine was the same before and after
}

// build builds a program with the versions of go.mod, once.
func (b *bench) build(pkg, name string) (string, error) {
	bin := filepath.Join(b.dir, name)
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	out, err := exec.Command("go", "build", "-o", bin, pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return bin, nil
}

// program returns the command of a system's program.
func (b *bench) program(name string) ([]string, error) {
	if name != "bullmq" {
		bin, err := b.build("./"+name, name)
		return []string{bin}, err
	}
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: no %s", errMissing, tool)
		}
	}
	dir := filepath.Join(b.dir, "node")
	if _, err := os.Stat(dir); err != nil {
		if err := os.CopyFS(dir, os.DirFS(name)); err != nil {
			return nil, err
		}
		install := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		install.Dir = dir
		if out, err := install.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("npm ci: %w\n%s", err, out)
		}
	}
	return []string{"node", filepath.Join(dir, "main.mjs")}, nil
}

// measure returns the figures of one system, or why there are none.
func (b *bench) measure(ctx context.Context, p peer) row {
	r := row{Name: p.name, URL: p.url, How: p.how}
	err := func() (err error) {
		if r.Server, err = p.server.versionOf(b); err != nil {
			return err
		}
		if r.Library, err = p.library(); err != nil {
			return err
		}
		command, err := b.program(p.program)
		if err != nil {
			return err
		}
		for _, phase := range []struct {
			name string
			run  func(*trial) error
		}{{"delayed", b.delayed}, {"backlog", b.backlog}, {"kill", b.kill}} {
			fmt.Fprintf(os.Stderr, "%s: %s\n", p.name, phase.name)
			// A phase that is run again begins with the fields of the phases before it.
			before := r
			state, err := machine.Steadily(ctx, b.tries, machine.Measure, func() error {
				r = before
				return b.withServer(ctx, p, command, &r, phase.run)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", phase.name, err)
			}
			r.machineWas(state)
		}
		return nil
	}()
	switch {
	case errors.Is(err, errMissing):
		r.LeftOut = err.Error()
	case err != nil:
		r.Failed = strings.Join(strings.Fields(err.Error()), " ")
	}
	return r
}

// trial is one phase of one system, on a server of its own.
type trial struct {
	*bench
	ctx     context.Context
	peer    peer
	command []string
	server  *server
	path    string // of the file of arrivals
	got     *arrivals
	row     *row
}

// withServer runs a phase on a new server that has what the system needs.
func (b *bench) withServer(ctx context.Context, p peer, command []string, r *row, phase func(*trial) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, phaseLimit, fmt.Errorf("it took more than %v", phaseLimit))
	defer cancel()
	s, err := p.server.start(ctx, b)
	if err != nil {
		return err
	}
	defer s.stop()
	t := &trial{bench: b, ctx: ctx, peer: p, command: command, server: s, row: r,
		path: filepath.Join(b.dir, "arrivals")}
	if t.got, err = newArrivals(t.path, b.sizes.messages); err != nil {
		return err
	}
	defer t.got.file.Close()
	if _, err := t.prepare("setup").Output(); err != nil {
		return withStderr("setup", err)
	}
	return phase(t)
}

// delayed has a worker that waits idle at first. Then it gets messages while producers publish
// them, one a call.
func (b *bench) delayed(t *trial) error {
	worker, err := t.startWorker()
	if err != nil {
		return err
	}
	defer worker.kill()
	if err := sleep(t.ctx, 3*b.sizes.settle); err != nil {
		return err
	}
	serverBefore, workerBefore, err := t.cpu(worker)
	if err != nil {
		return err
	}
	if err := sleep(t.ctx, b.sizes.idle); err != nil {
		return err
	}
	serverAfter, workerAfter, err := t.cpu(worker)
	if err != nil {
		return err
	}
	r := t.row
	r.IdleServer = millis(serverAfter-serverBefore) / b.sizes.idle.Seconds()
	r.IdleWorker = millis(workerAfter-workerBefore) / b.sizes.idle.Seconds()
	memory, err := t.server.memory()
	if err != nil {
		return err
	}
	r.IdleMemory = float64(memory) / (1 << 20)

	p := t.startProducer(1)
	if err := t.await(worker, p, 0); err != nil {
		return err
	}
	if err := sleep(t.ctx, t.sizes.settle); err != nil {
		return err
	}
	serverBefore, workerBefore = serverAfter, workerAfter
	if serverAfter, workerAfter, err = t.cpu(worker); err != nil {
		return err
	}
	n := float64(b.sizes.messages)
	r.Publish = n / p.seconds
	r.ServerCPU = micros(serverAfter-serverBefore) / n
	r.ClientCPU = micros(workerAfter-workerBefore+p.cpu) / n
	r.LateP50, r.LateP99, r.LateMax = millis(t.got.quantile(0.5)), millis(t.got.quantile(0.99)), millis(t.got.quantile(1))
	r.Early, r.Twice = t.got.early, t.got.twice
	return errors.Join(worker.stop(), t.complete())
}

// backlog has no worker until all messages are due, which were published many a call.
func (b *bench) backlog(t *trial) error {
	memoryBefore, diskBefore, err := t.held()
	if err != nil {
		return err
	}
	p := t.startProducer(batch)
	if <-p.done; p.err != nil {
		return p.err
	}
	allDue := time.Now().Add(b.sizes.maxDelay + b.sizes.settle)
	memoryAfter, diskAfter, err := t.held()
	if err != nil {
		return err
	}
	n := float64(b.sizes.messages)
	r := t.row
	if t.peer.bulk {
		r.PublishBulk = n / p.seconds
	}
	r.Memory = float64(memoryAfter-memoryBefore) / n
	r.Disk = float64(diskAfter-diskBefore) / n
	if err := sleep(t.ctx, time.Until(allDue)); err != nil {
		return err
	}
	worker, err := t.startWorker()
	if err != nil {
		return err
	}
	defer worker.kill()
	if err := t.await(worker, p, 0); err != nil {
		return err
	}
	r.Deliver = n / t.got.last.Sub(t.got.first).Seconds()
	r.Twice += t.got.twice
	r.Early += t.got.early
	return errors.Join(worker.stop(), t.complete())
}

// kill is like delayed, but when half of the messages have arrived, the worker's handlers hang. It
// is killed a second later, with its hands full, and another one is started a second after that.
func (b *bench) kill(t *trial) error {
	worker, err := t.startWorker()
	if err != nil {
		return err
	}
	defer func() { worker.kill() }()
	p := t.startProducer(1)
	if err := t.await(worker, p, b.sizes.messages/2); err != nil {
		return err
	}
	if err := worker.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return err
	}
	if err := sleep(t.ctx, t.sizes.settle); err != nil {
		return err
	}
	worker.kill()
	if err := sleep(t.ctx, t.sizes.settle); err != nil {
		return err
	}
	if worker, err = t.startWorker(); err != nil {
		return err
	}
	if err := t.await(worker, p, 0); err != nil {
		return err
	}
	r := t.row
	r.KillLost, r.KillTwice, r.KillLate = t.got.missing(), t.got.twice, t.got.quantile(1).Seconds()
	return worker.stop()
}

// cpu is the processor time of the server and of a worker.
func (t *trial) cpu(w *worker) (ofServer, ofWorker time.Duration, err error) {
	ofServer, err = cpuOf(t.server.root)
	if err == nil {
		ofWorker, err = cpuOf(w.cmd.Process.Pid)
	}
	return ofServer, ofWorker, err
}

// held is what the server has in memory and on disk.
func (t *trial) held() (memory, disk int64, err error) {
	if err := sleep(t.ctx, t.sizes.settle); err != nil {
		return 0, 0, err
	}
	if memory, err = t.server.memory(); err == nil {
		disk, err = diskOf(t.server.dir)
	}
	return memory, disk, err
}

// prepare returns a call of the system's program.
func (t *trial) prepare(args ...string) *exec.Cmd {
	command := append(append([]string{}, t.command[1:]...), args...)
	maxDelay := t.sizes.maxDelay
	if !t.peer.delays {
		maxDelay = 0
	}
	cmd := exec.CommandContext(t.ctx, t.command[0], append(command, "--addr", t.server.addr, "--lease", t.sizes.lease.String(),
		"--producers", strconv.Itoa(producers), "--min", t.sizes.minDelay.String(), "--max", maxDelay.String())...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// producer is a program that publishes all messages. Read its fields after done is closed.
type producer struct {
	done    chan struct{}
	seconds float64
	cpu     time.Duration
	err     error
}

func (t *trial) startProducer(batch int) *producer {
	p := &producer{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		cmd := t.prepare("produce", "--messages", strconv.Itoa(t.sizes.messages), "--batch", strconv.Itoa(batch))
		out, err := cmd.Output()
		if err != nil {
			p.err = withStderr("produce", err)
			return
		}
		var said struct{ Seconds float64 }
		if err := json.Unmarshal(out, &said); err != nil {
			p.err = fmt.Errorf("produce printed %q: %w", out, err)
			return
		}
		p.seconds, p.cpu = said.Seconds, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	}()
	return p
}

// worker is a program that consumes.
type worker struct {
	cmd   *exec.Cmd
	ended chan error
	over  bool
}

// startWorker returns when the worker is ready.
func (t *trial) startWorker() (*worker, error) {
	cmd := t.prepare("consume", "--arrivals", t.path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &worker{cmd: cmd, ended: make(chan error, 1)}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, errors.Join(errors.New("the worker ended before it was ready"), cmd.Wait())
	}
	go func() {
		_, _ = io.Copy(io.Discard, out)
		w.ended <- cmd.Wait()
	}()
	return w, nil
}

// kill ends a worker, if there is one that runs.
func (w *worker) kill() {
	if w != nil && !w.over {
		w.over = true
		_ = w.cmd.Process.Kill()
		<-w.ended
	}
}

// stop ends a worker in good order, or kills it if that takes too long.
func (w *worker) stop() error {
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-w.ended:
		w.over = true
		return err
	case <-time.After(20 * time.Second):
		w.kill()
		return errors.New("the worker did not stop within 20 s of SIGTERM")
	}
}

// await returns when all messages but some have arrived, or when none has for long although all are
// published.
func (t *trial) await(w *worker, p *producer, but int) error {
	missing, since, published := t.got.missing(), time.Now(), p.done
	for {
		select {
		case <-published:
			if p.err != nil {
				return p.err
			}
			published, since = nil, time.Now()
		case err := <-w.ended:
			w.over = true
			return fmt.Errorf("the worker ended: %w", cmp.Or(err, errors.New("without an error")))
		case <-t.ctx.Done():
			return context.Cause(t.ctx)
		case <-time.After(10 * time.Millisecond):
		}
		if err := t.got.read(); err != nil {
			return err
		}
		switch now := t.got.missing(); {
		case now <= but && (published == nil || but > 0):
			return nil
		case now != missing:
			missing, since = now, time.Now()
		case published == nil && time.Since(since) > t.sizes.patience+t.sizes.maxDelay:
			return nil // the rest is lost
		}
	}
}

// complete returns an error if messages are lost although nothing was killed.
func (t *trial) complete() error {
	if n := t.got.missing(); n > 0 {
		return fmt.Errorf("%d of %d messages are lost", n, t.sizes.messages)
	}
	return nil
}

func withStderr(what string, err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%s: %w\n%s", what, err, exit.Stderr)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
