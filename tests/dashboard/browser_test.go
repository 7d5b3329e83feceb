package dashboard

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

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
		chromium.err = chromedp.Run(ctx)
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

// open opens a page in a new tab. At its end the test fails if the browser reported an error.
func open(t testing.TB, address string, before ...chromedp.Action) *tab {
	t.Helper()
	browser, err := startBrowser()
	require.NoError(t, err)
	ctx, cancel := chromedp.NewContext(browser)
	b := &tab{t: t, ctx: ctx, cancel: cancel}
	t.Cleanup(b.close)
	chromedp.ListenTarget(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.faults = append(b.faults, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError && !strings.Contains(e.Entry.Text, "status of 40") {
				b.faults = append(b.faults, e.Entry.Text)
			}
		}
	})
	require.NoError(t, chromedp.Run(ctx, log.Enable(), emulation.SetFocusEmulationEnabled(true), chromedp.EmulateViewport(1280, 860)))
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
func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	require.NoError(b.t, chromedp.Run(ctx, actions...), "on the page:\n%s", b.text())
}

// text returns what a person sees.
func (b *tab) text() (text string) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	_ = chromedp.Run(ctx, chromedp.Evaluate(`document.body.innerText`, &text))
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
	b.do(chromedp.Click(fmt.Sprintf(`//*[self::a or self::button or self::summary][normalize-space(.)=%q]`, text), chromedp.BySearch, chromedp.NodeVisible))
}

// fill types into the field of a form by its name.
func (b *tab) fill(name, text string) {
	b.t.Helper()
	field := fmt.Sprintf(`main [name=%q]:not([type=hidden])`, name)
	b.do(chromedp.WaitVisible(field, chromedp.ByQuery), chromedp.Evaluate(fmt.Sprintf(`document.querySelector(%q).value = ""`, field), nil),
		chromedp.SendKeys(field, text, chromedp.ByQuery))
}

// Looks of the page.
var (
	light = emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "light"}})
	dark  = emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}})
	wide  = chromedp.EmulateViewport(1280, 860)
	phone = chromedp.EmulateViewport(390, 844)
)

// withoutScripts switches the scripts of pages off.
var withoutScripts = emulation.SetScriptExecutionDisabled(true)

// awaited has an evaluation wait for a promise.
func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
