package dashboard

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// patience is the longest that a test waits for a page.
const patience = time.Minute

// chromium is the browser that all tests share. Each test has a tab of its own.
var chromium struct {
	once sync.Once
	ctx  context.Context
	stop func()
	err  error
}

// startBrowser starts the browser, once.
func startBrowser() (context.Context, error) {
	chromium.once.Do(func() {
		path, err := exec.LookPath("chromium")
		if err != nil {
			chromium.err = fmt.Errorf("no chromium: use scripts/with-chromium.sh, or install it: %w", err)
			return
		}
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
			chromedp.Flag("lang", "en-GB"), chromedp.Env("TZ=Europe/Berlin", "LANGUAGE=en"))
		allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, stop := chromedp.NewContext(allocator)
		chromium.ctx, chromium.stop = ctx, func() { stop(); end() }
		chromium.err = chromedp.Do(ctx)
	})
	return chromium.ctx, chromium.err
}

// tab is a page of the browser, as somebody sees it.
type tab struct {
	t   testing.TB
	ctx context.Context

	cancel context.CancelFunc

	mu     sync.Mutex
	faults []string // errors of scripts, and of the policy
}

// step is an action in a tab that returns nothing.
type step = chromedp.Action[chromedp.Void]

// open opens a page in a new tab. At its end the test fails if the browser reported an error.
func open(t testing.TB, address string, before ...step) *tab {
	t.Helper()
	browser, err := startBrowser()
	require.NoError(t, err)
	ctx, cancel := chromedp.NewContext(browser)
	b := &tab{t: t, ctx: ctx, cancel: cancel}
	t.Cleanup(b.close)
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.faults = append(b.faults, (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError && !strings.Contains(e.Entry.Text, "status of 40") {
				b.faults = append(b.faults, e.Entry.Text)
			}
		}
	}))
	b.do(command(log.Enable, cdp.Empty{}), command(emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}), wide)
	b.do(before...)
	b.do(chromedp.Navigate(address))
	return b
}

// close closes the tab.
func (b *tab) close() {
	b.t.Helper()
	b.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.faults, "errors in the browser")
}

// do does something in the tab, and waits for it.
func (b *tab) do(steps ...step) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, steps...), "on the page:\n%s", b.text())
}

// got returns what an action in the tab returns.
func got[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	require.NoError(b.t, err, "on the page:\n%s", b.text())
	return value
}

// script runs a script, whatever it returns.
func script(text string, options ...chromedp.EvaluateOption) step {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := chromedp.Evaluate[*runtime.RemoteObject](text, options...)(ctx, t)
		return err
	})
}

// command is a command of the browser's protocol.
func command[P any](name cdp.Command[P, cdp.Empty], params P) step {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, name, params)
		return err
	})
}

// text returns what a person sees.
func (b *tab) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	return text
}

// sees waits until all texts are on the page.
func (b *tab) sees(texts ...string) {
	b.t.Helper()
	var seen string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		seen = strings.Join(strings.Fields(b.text()), " ")
		missing := ""
		for _, text := range texts {
			if !strings.Contains(seen, text) {
				missing = text
			}
		}
		if missing == "" {
			return
		}
	}
	require.Subset(b.t, []string{seen}, texts, "the page does not show it")
}

// click clicks the link, button or summary with a text.
func (b *tab) click(text string) {
	b.t.Helper()
	b.do(chromedp.Click(fmt.Sprintf(`//*[self::a or self::button or self::summary][normalize-space(.)=%q]`, text), chromedp.NodeVisible))
}

// fill types into the field of a form by its name.
func (b *tab) fill(name, text string) {
	b.t.Helper()
	field := chromedp.CSS(fmt.Sprintf(`main [name=%q]:not([type=hidden])`, name))
	b.do(chromedp.WaitVisible(field), script(fmt.Sprintf(`document.querySelector(%q).value = ""`, field)), chromedp.SendKeys(field, text))
}

// Looks of the page.
var (
	light = scheme("light")
	dark  = scheme("dark")
	wide  = chromedp.EmulateViewport(1280, 860)
	phone = chromedp.EmulateViewport(390, 844)
)

// scheme has pages be as those who like it light or dark see them.
func scheme(value string) step {
	return command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}},
	})
}

// withoutScripts switches the scripts of pages off.
var withoutScripts = command(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
