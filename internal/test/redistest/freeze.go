package redistest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// AwaitFrozen returns when no thread of a process runs any more, after SIGSTOP. The signal is on
// its way when kill returns, and on a busy machine the process may do a lot until it comes.
func AwaitFrozen(t testing.TB, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !frozen(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("redistest: process %d goes on after SIGSTOP", pid)
		}
	}
}

func frozen(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if len(threads) == 0 { // not on Linux
		state, _ := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
		return bytes.HasPrefix(bytes.TrimSpace(state), []byte("T"))
	}
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil { // the thread has ended
			continue
		}
		if state := bytes.TrimSpace(text[bytes.LastIndexByte(text, ')')+1:]); !bytes.HasPrefix(state, []byte("T")) {
			return false
		}
	}
	return true
}
