package scheduler

import (
	"errors"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// alarm waits to within about ten microseconds. It uses two timers, and the first that fires ends
// the wait. In an idle process a runtime timer fires up to a millisecond late, because epoll counts
// whole milliseconds; a kernel timer does not. In a busy process the runtime seldom polls the
// kernel, but its own timers are exact. Only one goroutine may use an alarm at a time. The zero
// value is ready.
type alarm struct {
	timer *os.File // a timerfd; nil if none is open
}

// wait returns after d. Without a kernel timer it sleeps.
func (a *alarm) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	if a.timer == nil {
		a.open()
	}
	if a.timer != nil {
		err := a.arm(d)
		if err == nil {
			err = a.await(d)
		}
		if err == nil {
			return
		}
		a.close()
	}
	time.Sleep(d)
}

const clockMonotonic = 1

func (a *alarm) open() {
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errno == 0 {
		a.timer = os.NewFile(fd, "timerfd")
	}
}

// arm sets the kernel timer to fire after d, and clears an earlier firing.
func (a *alarm) arm(d time.Duration) error {
	spec := struct{ interval, value syscall.Timespec }{value: syscall.NsecToTimespec(d.Nanoseconds())}
	timer, err := a.timer.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = timer.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}

// await returns when the kernel timer or a runtime timer for d fires.
func (a *alarm) await(d time.Duration) error {
	if err := a.timer.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	var expirations [8]byte
	_, err := a.timer.Read(expirations[:]) // like a network read, this blocks no thread
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func (a *alarm) close() {
	if a.timer != nil {
		_ = a.timer.Close()
		a.timer = nil
	}
}
