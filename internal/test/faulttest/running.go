package faulttest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// start starts the process.
func (r *Running) start() error {
	text, err := json.Marshal(r.Worker)
	if err != nil {
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	r.cmd = exec.Command(binary)
	r.cmd.Env = append(os.Environ(), workerVariable+"="+string(text))
	r.cmd.Stderr = os.Stderr
	if r.stdin, err = r.cmd.StdinPipe(); err != nil { // it closes with this process, which ends the worker
		return err
	}
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	go func() {
		defer close(r.ended)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			r.lines <- lines.Text()
		}
		r.err = r.cmd.Wait()
		r.down()
	}()
	return nil
}

// up and down record that a consumer is at work or not.
func (r *Running) up() { r.note(Up) }

func (r *Running) down() { r.note(Down) }

func (r *Running) note(kind Kind) {
	if r.Role == Consumer {
		r.w.journal.Write(Event{Kind: kind, By: r.Name, Group: r.Group})
	}
}

func (r *Running) await(line string) {
	r.w.t.Helper()
	select {
	case said := <-r.lines:
		require.Equal(r.w.t, line, said)
	case <-r.ended:
		r.w.t.Fatalf("worker %q has ended: %v", r.Name, r.err)
	case <-time.After(2 * time.Minute):
		r.w.t.Fatalf("worker %q does not say that it is %s", r.Name, line)
	}
}

// Kill kills the worker with SIGKILL, waits for its end, and records it in the history.
func (r *Running) Kill() {
	select {
	case <-r.ended:
		return
	default:
	}
	_ = r.cmd.Process.Kill()
	<-r.ended
	r.w.journal.Write(Event{Kind: Killed, By: r.Name})
}

// Stop stops the worker cleanly, and waits for its end.
func (r *Running) Stop() {
	r.down()
	_, _ = io.WriteString(r.stdin, "stop\n")
	select {
	case <-r.ended:
	case <-time.After(30 * time.Second):
		r.w.t.Errorf("worker %q does not end", r.Name)
		r.Kill()
	}
}

// failed returns an error if the worker ended by itself, not by a signal.
func (r *Running) failed() error {
	select {
	case <-r.ended:
	default:
		return nil
	}
	var exit *exec.ExitError
	if errors.As(r.err, &exit) && !exit.Exited() {
		return nil
	}
	return r.err
}

// PID returns the ID of the process.
func (r *Running) PID() int { return r.cmd.Process.Pid }

// Freeze stops the process with SIGSTOP until thaw, or until the end of the test, even by a crash.
func (r *Running) Freeze() (thaw func()) {
	r.w.t.Helper()
	shell := exec.Command("sh", "-c", `kill -s STOP "$0" && echo; read _; kill -s CONT "$0"`, strconv.Itoa(r.cmd.Process.Pid))
	stdin, err := shell.StdinPipe()
	require.NoError(r.w.t, err)
	stdout, err := shell.StdoutPipe()
	require.NoError(r.w.t, err)
	require.NoError(r.w.t, shell.Start())
	thaw = sync.OnceFunc(func() {
		_ = stdin.Close()
		_ = shell.Wait()
		r.up()
	})
	r.w.t.Cleanup(thaw)
	require.True(r.w.t, bufio.NewScanner(stdout).Scan(), "worker %q cannot be frozen", r.Name)
	redistest.AwaitFrozen(r.w.t, r.cmd.Process.Pid)
	r.down()
	return thaw
}

// Respawn starts a new worker, with a new name, whenever the process has ended by itself, until end
// is called.
func (r *Running) Respawn() (end func()) {
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		current := r
		for life := 2; ; life++ {
			select {
			case <-stop:
				return
			case <-current.ended:
			}
			worker := r.Worker
			worker.Name = fmt.Sprintf("%s.%d", r.Name, life)
			var err error
			if current, err = r.w.launch(worker); err != nil {
				r.w.t.Error(err)
				return
			}
			select {
			case <-current.lines:
				current.up()
			case <-current.ended:
			}
		}
	}()
	end = sync.OnceFunc(func() {
		close(stop)
		<-done
	})
	r.w.t.Cleanup(end)
	return end
}
