package redistest

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/disk.c
var diskSource []byte

// Files are what a server has in its data directory to begin with again, by their names in it: a snapshot, and the
// append-only file, which has several parts since Redis 7.
type Files map[string][]byte

// StartWithDisk is Start for a server that notes what the disk has confirmed, so that Disk can tell. It needs Linux and
// a C compiler (as -race does).
func StartWithDisk(t testing.TB, args ...string) *Instance {
	t.Helper()
	return (&Instance{t: t, args: args, withDisk: true}).start(freePort)
}

// noteDisk prepares what StartWithDisk adds to the server's environment.
func (in *Instance) noteDisk() {
	in.t.Helper()
	if err := os.WriteFile(in.path("disk"), nil, 0o600); err != nil {
		in.t.Fatal(err)
	}
	in.env = append(in.env, in.preload("disk", diskSource), "REDISTEST_DISK="+in.path("disk"))
}

// Disk is what a loss of power would leave at this moment, and since when what was written may be missing: all that the
// server had written to its files until then is there. It is for servers of StartWithDisk.
//
// The last confirmation of a file counts, and nothing that the system has written by itself besides. What a loss of
// power does to the directory is not played: files that were renamed are where they are now.
func (in *Instance) Disk() (files Files, safe time.Time) {
	in.t.Helper()
	notes, err := os.ReadFile(in.path("disk")) // before the files: what they get now, the notes do not have
	if err != nil {
		in.t.Fatal(err)
	}
	confirmed := map[uint64]int64{} // by inode
	const size = 24                 // of a note: inode, length, time
	for note := range slices.Chunk(notes[:len(notes)/size*size], size) {
		confirmed[binary.NativeEndian.Uint64(note)] = int64(binary.NativeEndian.Uint64(note[8:]))
		safe = time.Unix(0, int64(binary.NativeEndian.Uint64(note[16:])))
	}
	files = in.Files()
	for name, text := range files {
		info, err := os.Stat(in.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			delete(files, name)
			continue
		}
		if err != nil {
			in.t.Fatal(err)
		}
		files[name] = text[:min(int64(len(text)), confirmed[inode(info)])]
	}
	return files, safe
}

// PowerLoss ends the server as a loss of power does: what the disk has not confirmed is gone. It stays down until
// Restart. It returns since when what was written may be missing.
func (in *Instance) PowerLoss() (safe time.Time) {
	in.t.Helper()
	in.Kill()
	files, safe := in.Disk()
	in.SetFiles(files)
	return safe
}

// Files are what the server has in its directory at this moment.
func (in *Instance) Files() Files {
	in.t.Helper()
	files := Files{}
	err := filepath.WalkDir(in.dir, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(in.dir, path)
		if err != nil || entry.IsDir() || !isData(name) {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(path)
		if err == nil {
			files[name] = text
		}
		return ignoreGone(err)
	})
	if err != nil {
		in.t.Fatal(err)
	}
	return files
}

// isData tells of a file whether the server reads it as it begins.
func isData(name string) bool {
	base := filepath.Base(name)
	return !strings.HasPrefix(base, "temp") && (strings.HasPrefix(base, "appendonly.aof") || filepath.Ext(base) == ".rdb")
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// SetFiles gives a server that is down other files than it has, which are on its disk. Those of another server of the
// same version and arguments will do.
func (in *Instance) SetFiles(files Files) {
	in.t.Helper()
	for name := range in.Files() {
		if _, stays := files[name]; stays {
			continue
		}
		if err := os.Remove(in.path(name)); err != nil {
			in.t.Fatal(err)
		}
	}
	var notes []byte
	for name, text := range files {
		err := os.MkdirAll(filepath.Dir(in.path(name)), 0o700)
		if err == nil {
			err = os.WriteFile(in.path(name), text, 0o600)
		}
		var info fs.FileInfo
		if err == nil {
			info, err = os.Stat(in.path(name))
		}
		if err != nil {
			in.t.Fatal(err)
		}
		for _, number := range []uint64{inode(info), uint64(len(text)), uint64(time.Now().UnixNano())} {
			notes = binary.NativeEndian.AppendUint64(notes, number)
		}
	}
	if in.withDisk { // and no more of files that were removed, whose number others may get
		if err := os.WriteFile(in.path("disk"), notes, 0o600); err != nil {
			in.t.Fatal(err)
		}
	}
}

// Log is the part of the append-only file that grows.
func (f Files) Log() []byte { return f[f.log()] }

// Cut is the files with a shorter Log.
func (f Files) Cut(length int) Files {
	cut := maps.Clone(f)
	cut[f.log()] = cut[f.log()][:length]
	return cut
}

func (f Files) log() string {
	for name := range f {
		if strings.HasSuffix(name, ".incr.aof") || filepath.Base(name) == "appendonly.aof" {
			return name
		}
	}
	return ""
}
