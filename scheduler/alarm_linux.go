package scheduler

import (
	"errors"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// alarm waits as exactly as the kernel can, to some ten microseconds. Where all goroutines sleep, a timer of the runtime ends
// up to a millisecond late, because epoll counts whole milliseconds. Where others run all the time, the runtime seldom looks at
// what the kernel has to say, but its own timers end in time: so an alarm has both. One goroutine uses an alarm at
// a time; the zero value is ready.
type alarm struct {
	timer *os.File // a timerfd, once there was one to be had
}

// wait returns after d.
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

// arm has the kernel's timer end after d, and forget that it did before.
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

// await waits for the end of the kernel's timer, or of one of the runtime.
func (a *alarm) await(d time.Duration) error {
	if err := a.timer.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	var expirations [8]byte
	_, err := a.timer.Read(expirations[:]) // without a thread, as from a connection
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
