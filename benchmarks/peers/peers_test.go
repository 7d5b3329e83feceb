package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/test/machine"
)

func TestArrivalsAreTalliedAlsoWhereARecordIsHalfWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "arrivals")
	a, err := newArrivals(path, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer a.file.Close()
	if got := a.quantile(1); got != 0 {
		t.Errorf("without arrivals the latest was %v late, want 0", got)
	}
	worker, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	record := func(number, due, at string) string {
		pad := func(s string) string { return strings.Repeat("0", 16-len(s)) + s }
		return pad(number) + pad(due) + pad(at) + "\n"
	}
	late, early := record("2", "1000", "1005000"), record("0", "2000", "1999999")
	for _, part := range []string{late + early[:20], early[20:] + late} {
		if _, err := worker.WriteString(part); err != nil {
			t.Fatal(err)
		}
		if err := a.read(); err != nil {
			t.Fatal(err)
		}
	}
	if a.missing() != 1 || a.early != 1 || a.twice != 1 {
		t.Errorf("%d missing, %d early, %d twice, want 1 of each", a.missing(), a.early, a.twice)
	}
	if got, want := a.quantile(1), 5*time.Millisecond; got != want {
		t.Errorf("the latest was %v late, want %v", got, want)
	}
	if got, want := a.last.Sub(a.first), 994_999*time.Microsecond; got != want {
		t.Errorf("%v between the first and the last arrival, want %v", got, want)
	}
	if err := a.add(record("3", "1", "1")); err == nil {
		t.Error("a message that was not published is no error")
	}
}

func TestProcessorTimeOfAProcessWithASpaceInItsName(t *testing.T) {
	t.Parallel()
	got, err := parseStat("42 (a ) b) S 7 42 42 0 -1 4194304 120 0 0 0 1 2 3 4 20 0 1 0 1491205")
	if want := (stat{pid: 42, parent: 7, cpu: 100 * time.Millisecond}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestOwnProcessHasFigures(t *testing.T) {
	t.Parallel()
	if cpu, err := cpuOf(os.Getpid()); err != nil || cpu < 0 {
		t.Errorf("cpuOf: %v, %v", cpu, err)
	}
	if memory, err := memoryOf(os.Getpid()); err != nil || memory < 1<<20 {
		t.Errorf("memoryOf: %d, %v, want at least 1 MiB", memory, err)
	}
	if _, err := sharedMemory(); err != nil {
		t.Error(err)
	}
}

func TestReportMarksTheBestAndNamesWhatIsBetterElsewhere(t *testing.T) {
	t.Parallel()
	r := &report{Heading: "heading", Systems: []row{
		{Name: "watermill-redisdelay", Publish: 1000, PublishBulk: 5000, LateP50: 0.5},
		{Name: "watermill-redisstream", Publish: 9000, LateP50: 0.1},
		{Name: "asynq", Publish: 2000, LateP50: 500},
		{Name: "River", LeftOut: "not installed"},
	}}
	table := r.table([]column{publish, publishBulk, lateP50})
	for _, line := range []string{
		"| watermill-redisdelay | 1,000 | **5,000** | **0.5** |\n",
		"| watermill-redisstream | 9,000 | – | 0.1 |\n", // it has no delays, so it takes part in no comparison
		"| asynq | **2,000** | – | 500 |\n",
	} {
		if !strings.Contains(table, line) {
			t.Errorf("the table lacks %q:\n%s", line, table)
		}
	}
	if better, want := r.better(), "- asynq: publish/s, 1 a call (2,000, not 1,000).\n"; !strings.Contains(better, want) {
		t.Errorf("what is better lacks %q:\n%s", want, better)
	}
	if text := r.markdown(); !strings.Contains(text, "- River: not installed.\n") {
		t.Errorf("River is not left out by name:\n%s", text)
	}

	file := filepath.Join(t.TempDir(), "choose.md")
	if err := os.WriteFile(file, []byte("before\n"+beginMark+"old\n"+endMark+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.write("", file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	if !strings.HasPrefix(got, "before\n"+beginMark+"heading\n") || !strings.HasSuffix(got, endMark+"after\n") || strings.Contains(got, "old") {
		t.Errorf("the document is:\n%s", got)
	}
}

func TestTheMachineStandsBesideTheFigures(t *testing.T) {
	t.Parallel()
	r := row{Name: "asynq"}
	r.machineWas(machine.State{Before: 100, After: 109})
	if r.Moved != 0 {
		t.Error("a machine that moved by 9 percent is marked")
	}
	r.machineWas(machine.State{Before: 100, After: 111})
	r.Load = 2.5
	table := (&report{Systems: []row{r}}).table([]column{load, moved})
	if !strings.Contains(table, "| asynq | 2.5 | 1 |\n") {
		t.Errorf("the table is\n%s", table)
	}
}

func TestNumbersHaveThreeDigitsThatCount(t *testing.T) {
	t.Parallel()
	for f, want := range map[float64]string{0: "0", 0.1234: "0.123", 4.89: "4.89", 44.5: "44.5", 104: "104", 123456.7: "123,457", -0.5: "-0.5", 100: "100"} {
		if got := number(f); got != want {
			t.Errorf("number(%v) = %q, want %q", f, got, want)
		}
	}
}

func TestDocumentSaysWhenToUseEachSystem(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/choose.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range peers {
		name, _, _ := strings.Cut(p.name, ",")
		if heading := "\n## Use " + name + " if\n"; !strings.Contains(string(text), heading) {
			t.Errorf("docs/choose.md lacks %q", heading)
		}
	}
	for _, mark := range []string{beginMark, endMark} {
		if !strings.Contains(string(text), "\n"+mark) {
			t.Errorf("docs/choose.md lacks %q", mark)
		}
	}
}
