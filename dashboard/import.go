package dashboard

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

const (
	importPath = "/import"
	maxFile    = 16 << 20         // of a file that is imported; the tool has no limit
	maxSent    = 256 << 20        // is read of one that is longer, so that browsers show the answer
	maxFiles   = 4                // that wait for somebody who confirms
	fileFor    = 15 * time.Minute // how long one waits
)

// importing publishes the dead letters of a file.
var importing = work{looks: lookAtImport, does: doImport, Operation: admin.Operation{Name: "import", Verb: "import", Unit: "dead letter", Of: admin.OfTopic, Partitions: true,
	Effect: "Publish exported dead letters as new messages, due now, to every group of the topic. Those that were imported within the last hour are left out."}}

var errNoFile = &refusal{http.StatusNotFound, "The file is not here any more. Choose it again. Nothing was changed."}

func lookAtImport(ctx context.Context, d *Dashboard, t target) (prospect, error) {
	text, ok := d.uploads.get(t.File)
	if !ok {
		return prospect{}, errNoFile
	}
	would, err := d.admin.ImportDead(ctx, t.Topic, admin.ReadLetters(text), admin.Import{DryRun: true})
	if err != nil {
		return prospect{}, err
	}
	if would.Letters == 0 {
		return prospect{}, bad("The file has no dead letter.")
	}
	p := prospect{Count: would.Letters, Others: would.Others, Said: []string{"They were dead in " + groupsNamed(would.From) + "."}}
	if len(would.Others) > 0 {
		p.Said = append(p.Said, "The topic also has "+groupsNamed(would.Others)+". An import delivers to all its groups.")
	}
	return p, nil
}

func doImport(ctx context.Context, d *Dashboard, t target, tell func(admin.Progress)) (result, error) {
	text, ok := d.uploads.take(t.File)
	if !ok {
		return result{}, errNoFile
	}
	done, err := d.admin.ImportDead(ctx, t.Topic, admin.ReadLetters(text), admin.Import{EveryGroup: t.Every, Progress: tell})
	did := result{done: done.Letters}
	if done.LeftOut > 0 {
		did.said = []string{texts.Many(done.LeftOut, "dead letter") + " left out, imported within the last hour."}
	}
	if err != nil {
		did.said = append(did.said, "Choose the file again for the others. Those that are imported are left out then.")
	}
	return did, err
}

// uploads are files that wait for somebody who confirms what is done with them.
type uploads struct {
	mu  sync.Mutex
	all []*upload // the newest last
}

type upload struct {
	name  string // that nobody can guess
	text  []byte
	timer *time.Timer // drops it
}

// put keeps a file for a while, and returns its name.
func (u *uploads) put(text []byte) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.all) == maxFiles {
		u.all[0].timer.Stop()
		u.all = slices.Delete(u.all, 0, 1)
	}
	one := &upload{name: rand.Text(), text: text}
	one.timer = time.AfterFunc(fileFor, func() { u.take(one.name) })
	u.all = append(u.all, one)
	return one.name
}

func (u *uploads) get(name string) ([]byte, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, one := range u.all {
		if one.name == name {
			return one.text, true
		}
	}
	return nil, false
}

// take is get, and the file is not kept any longer.
func (u *uploads) take(name string) ([]byte, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	i := slices.IndexFunc(u.all, func(one *upload) bool { return one.name == name })
	if i < 0 {
		return nil, false
	}
	text := u.all[i].text
	u.all[i].timer.Stop()
	u.all = slices.Delete(u.all, i, i+1)
	return text, true
}

// drop drops all files.
func (u *uploads) drop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, one := range u.all {
		one.timer.Stop()
	}
	u.all = nil
}

// upload takes a file of dead letters, and leads to the page that says what an import would do.
func (d *Dashboard) upload(w http.ResponseWriter, c *call) {
	if !c.user.Contents {
		d.fail(w, c, &refusal{http.StatusForbidden, "You may not see metadata and payloads, so you may not import them."})
		return
	}
	if d.uploading.take(c.user.Name) != granted {
		d.fail(w, c, &refusal{http.StatusTooManyRequests, "Another file is being read. Try again in a moment."})
		return
	}
	defer d.uploading.give(c.user.Name)
	topic := c.URL.Query().Get("t")
	text, err := fileOf(c.Request)
	if err == nil {
		ctx, cancel := context.WithTimeout(c.ctx, workFor)
		defer cancel()
		_, err = d.read(ctx, topic)
	}
	if err != nil {
		d.fail(w, c, err)
		return
	}
	http.Redirect(w, c.Request, d.address("/confirm", "do", importing.Name, "t", topic, "file", d.uploads.put(text)), http.StatusSeeOther)
}

// fileOf returns the file of a form. A longer one than maxFile is read to its end, and refused.
func fileOf(r *http.Request) ([]byte, error) {
	parts, err := r.MultipartReader()
	var part *multipart.Part
	for err == nil && (part == nil || part.FormName() != "file") {
		part, err = parts.NextPart()
	}
	if errors.Is(err, io.EOF) {
		return nil, bad("Choose a file. Nothing was changed.")
	}
	var text bytes.Buffer
	n := int64(0)
	if err == nil {
		if n, err = io.Copy(&text, io.LimitReader(part, maxFile+1)); err == nil && n > maxFile {
			text.Reset()
			_, err = io.Copy(io.Discard, part)
		}
	}
	if long := (*http.MaxBytesError)(nil); n > maxFile || errors.As(err, &long) {
		return nil, &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("The page takes a file of at most %d MiB. Use the tool: redisdelay dead import. Nothing was changed.", maxFile>>20)}
	}
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, "The file cannot be read: " + strings.TrimSuffix(err.Error(), ".") + ". Nothing was changed."}
	}
	return text.Bytes(), nil
}
