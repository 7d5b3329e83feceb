package scheduler

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// alarm waits as exactly as the kernel can, to some ten microseconds. A timer of the Go runtime ends up to a millisecond
// late where all else sleeps, because epoll counts whole milliseconds. One goroutine uses an alarm at a time; the
// zero value is ready.
type alarm struct {
	timer  *os.File // a timerfd; nil: not made yet
	broken bool     // it cannot be made here
}

// wait returns after d, or later where only the runtime's timers are to be had.
func (a *alarm) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	if a.timer == nil && !a.broken {
		a.open()
	}
	if a.broken || !a.set(d) {
		time.Sleep(d)
	}
}

const clockMonotonic = 1

func (a *alarm) open() {
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if a.broken = errno != 0; !a.broken {
		a.timer = os.NewFile(fd, "timerfd")
	}
}

// set waits for the kernel's timer, and returns false if it is of no use.
func (a *alarm) set(d time.Duration) bool {
	spec := struct{ interval, value syscall.Timespec }{value: syscall.NsecToTimespec(d.Nanoseconds())}
	raw, err := a.timer.SyscallConn()
	if err == nil {
		var errno syscall.Errno
		err = raw.Control(func(fd uintptr) {
			_, _, errno = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
		})
		if err == nil && errno != 0 {
			err = errno
		}
	}
	if err == nil {
		var expirations [8]byte
		_, err = a.timer.Read(expirations[:]) // waits without a thread, as for a connection
	}
	if err != nil {
		a.close()
		a.broken = true
	}
	return err == nil
}

func (a *alarm) close() {
	if a.timer != nil {
		_ = a.timer.Close()
		a.timer = nil
	}
}
