package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of processor time in /proc, which is the same on all Linux systems that Go has.
const tick = 10 * time.Millisecond

// processes returns a process and all that descend from it.
func processes(root int) ([]stat, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	children := map[int][]stat{}
	var found []stat
	for _, dir := range dirs {
		s, err := readStat(dir)
		if err != nil {
			continue // it has ended
		}
		if s.pid == root {
			found = append(found, s)
		}
		children[s.parent] = append(children[s.parent], s)
	}
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("process %d has ended", root)
	}
	return found, nil
}

// stat is a part of what Linux tells of a process.
type stat struct {
	pid, parent int
	cpu         time.Duration // its own and that of its children that have ended
}

func readStat(dir string) (stat, error) {
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(text))
}

// parseStat reads /proc/<pid>/stat: the number, the name in parentheses, then fields from the third
// on, of which the 14th to 17th are processor times.
func parseStat(text string) (s stat, err error) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return s, fmt.Errorf("/proc has a process %q", text)
	}
	fields := strings.Fields(text[end+1:])
	if len(fields) < 15 {
		return s, fmt.Errorf("/proc has a process %q", text)
	}
	if s.pid, err = strconv.Atoi(strings.TrimSpace(text[:open])); err != nil {
		return s, err
	}
	if s.parent, err = strconv.Atoi(fields[1]); err != nil {
		return s, err
	}
	for _, field := range fields[11:15] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			return s, err
		}
		s.cpu += time.Duration(ticks) * tick
	}
	return s, nil
}

// cpuOf is the processor time that a process and its descendants have used.
func cpuOf(root int) (cpu time.Duration, err error) {
	found, err := processes(root)
	for _, s := range found {
		cpu += s.cpu
	}
	return cpu, err
}

// memoryOf is how much memory a process and its descendants have, without what they share with each
// other by shared memory. Pages of files that several have mapped count once.
func memoryOf(root int) (sum int64, err error) {
	found, err := processes(root)
	for _, s := range found {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", s.pid))
		if err != nil {
			continue // it has ended
		}
		for _, field := range []string{"Pss_Anon:", "Pss_File:"} {
			bytes, err := kilobytes(string(text), field)
			if err != nil {
				return 0, err
			}
			sum += bytes
		}
	}
	return sum, err
}

// sharedMemory is how much shared memory the whole machine has. The one of PostgreSQL is not all
// mapped by a process that lives.
func sharedMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return kilobytes(string(text), "Shmem:")
}

// kilobytes reads a field in kB from a file of /proc, as bytes.
func kilobytes(text, field string) (int64, error) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == field {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("/proc does not tell %s", field)
}

// diskOf is how much disk the files in a directory take.
func diskOf(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil // a file that has gone meanwhile
		}
		var s syscall.Stat_t
		if syscall.Lstat(path, &s) == nil {
			sum += s.Blocks * 512
		}
		return nil
	})
	return sum, err
}
