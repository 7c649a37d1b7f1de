package directory

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// kept is a directory of two members, as at revision 7, and the contents of its file.
func kept(t testing.TB) (a *authority, d *Directory, data []byte) {
	t.Helper()
	a = newAuthority(t, testCollective)
	j := NewJournal(42)
	for i, m := range []member{a.issue(t, "alice", terms{subnet: "10.1.2.0/26"}), a.issue(t, "bob", terms{})} {
		if err := j.Put(uint64(3+4*i), m.name, m.signed(t, 1)); err != nil {
			t.Fatal(err)
		}
	}
	d = New(DefaultLimits())
	d.Answer(j.Answer(Ask{}), a.trust(t), time.Now())
	data, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return a, d, data
}

func TestSaveAndLoad(t *testing.T) {
	a, d, data := kept(t)
	path := filepath.Join(t.TempDir(), "directory")
	for range 2 { // the second time, there is one
		if err := Save(path, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".1"), data[:100], 0o600); err != nil { // as left by a power cut
		t.Fatal(err)
	}
	back, err := Load(t.Context(), path, DefaultLimits(), a.trust(t), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if back.Len() != d.Len() || back.Bytes() != d.Bytes() {
		t.Errorf("%d members with %d bytes, want %d with %d", back.Len(), back.Bytes(), d.Len(), d.Bytes())
	}
	if ask, behind := back.Behind(); !behind || ask != (Ask{Epoch: 42, After: 7}) {
		t.Errorf("asks %+v, %v", ask, behind)
	}
	if again, err := back.Encode(); err != nil || !bytes.Equal(again, data) {
		t.Errorf("written again, it is another file (%v)", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// What was refused or dropped because of a wrong clock is requested again after a restart with the right time.
func TestLoadAfterAWrongClock(t *testing.T) {
	now := time.Now()
	path := filepath.Join(t.TempDir(), "directory")
	start := func(a *authority) Ask {
		t.Helper()
		d, err := Load(t.Context(), path, DefaultLimits(), a.trust(t), now)
		if err != nil {
			t.Fatal(err)
		}
		ask, _ := d.Behind()
		return ask
	}

	// It was behind: bob's record was not valid yet.
	a := newAuthority(t, testCollective)
	j := NewJournal(42)
	alice, bob := a.issue(t, "alice", terms{}), a.issue(t, "bob", terms{})
	old := alice.record(1, now.Add(-3*time.Hour))
	if err := errors.Join(j.Put(1, "alice", alice.sign(t, old)), j.Put(2, "bob", bob.signed(t, 1))); err != nil {
		t.Fatal(err)
	}
	behind := New(DefaultLimits())
	behind.Answer(j.Answer(Ask{}), a.trust(t), now.Add(-2*time.Hour))
	if behind.Refused()[NotYet] == 0 {
		t.Fatalf("refused %v", behind.Refused())
	}
	data, err := behind.Encode()
	if err := errors.Join(err, Save(path, data)); err != nil {
		t.Fatal(err)
	}
	if ask := start(a); ask.After != 0 {
		t.Errorf("after a clock that was behind: asks %+v", ask)
	}

	// It was ahead: records seemed to have ended.
	a, _, data = kept(t)
	if err := Save(path, data); err != nil {
		t.Fatal(err)
	}
	if ask := start(a); ask.After != 7 {
		t.Fatalf("with a good clock: asks %+v", ask)
	}
	if err := os.Chtimes(path, time.Time{}, now.Add(24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if ask := start(a); ask.After != 0 {
		t.Errorf("after a clock that was ahead: asks %+v", ask)
	}
}

func TestLoadNothing(t *testing.T) {
	a := newAuthority(t, testCollective)
	d, err := Load(t.Context(), filepath.Join(t.TempDir(), "none"), DefaultLimits(), a.trust(t), time.Now())
	if err != nil || d.Len() != 0 {
		t.Fatal(d.Len(), err)
	}
	var fileErr *FileError
	d, err = Load(t.Context(), t.TempDir(), DefaultLimits(), a.trust(t), time.Now()) // a directory of the file system
	if !errors.As(err, &fileErr) || fileErr.Aside != "" || d.Len() != 0 {
		t.Fatal(d.Len(), err)
	}
	if err := Save(filepath.Join(t.TempDir(), "no", "such"), nil); !errors.As(err, &fileErr) {
		t.Fatal(err)
	}
}

// Whatever a power cut or a bad disk has damaged, the file is put aside and the agent continues.
func TestLoadDamaged(t *testing.T) {
	a, _, data := kept(t)
	trust, now := a.trust(t), time.Now()
	path := filepath.Join(t.TempDir(), "directory")
	try := func(what string, at int, damaged []byte) {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Load(t.Context(), path, DefaultLimits(), trust, now)
		var fileErr *FileError
		if !errors.As(err, &fileErr) || !errors.Is(err, ErrDamaged) || d.Len() != 0 {
			t.Fatalf("%s at %d: %d members, %v", what, at, d.Len(), err)
		}
		if aside, err := os.ReadFile(fileErr.Aside); err != nil || !bytes.Equal(aside, damaged) {
			t.Fatalf("%s at %d: not put aside: %v", what, at, err)
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Fatalf("%s at %d: still there", what, at)
		}
		if ask, behind := d.Behind(); !behind || ask != (Ask{}) {
			t.Fatalf("%s at %d: asks %+v", what, at, ask)
		}
	}
	for i := range data {
		try("cut", i, data[:i])
		flipped := bytes.Clone(data)
		flipped[i] ^= 0x10
		try("flipped", i, flipped)
	}
	try("longer", len(data), append(bytes.Clone(data), 0))
	try("foreign", 0, []byte("[client]\nenabled = true\n"))
}

// A checksum is no signature: records that somebody else has put into the file are refused.
func TestLoadForged(t *testing.T) {
	_, _, data := kept(t)
	another := newAuthority(t, testCollective)
	path := filepath.Join(t.TempDir(), "directory")
	if err := Save(path, data); err != nil {
		t.Fatal(err)
	}
	d, err := Load(t.Context(), path, DefaultLimits(), another.trust(t), time.Now())
	if err != nil || d.Len() != 0 || d.Refused()[Foreign] != 2 {
		t.Fatal(d.Len(), d.Refused(), err)
	}
	if ask, _ := d.Behind(); ask != (Ask{Epoch: 42}) {
		t.Errorf("what was refused is not asked for again: %+v", ask)
	}
}

// A member that was expelled while the agent was down does not come back with the file.
func TestLoadWithoutTheExpelled(t *testing.T) {
	a := newAuthority(t, testCollective)
	issued, err := a.signer.Issue(collective.Request{Name: "mallory", Validity: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(issued.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	mallory := member{"mallory", [][]byte{blockOf(t, string(data)), a.cert.Raw}, keyIn(t, issued.KeyFile)}
	j := NewJournal(1)
	if err := j.Put(1, "mallory", mallory.signed(t, 1)); err != nil {
		t.Fatal(err)
	}
	d := New(DefaultLimits())
	if events := d.Answer(j.Answer(Ask{}), a.trust(t), time.Now()); len(events) != 1 {
		t.Fatal(events, d.LastRefusal())
	}
	path := filepath.Join(t.TempDir(), "directory")
	contents, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := Save(path, contents); err != nil {
		t.Fatal(err)
	}
	if _, err := a.signer.Revoke("mallory", collective.PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	if events := d.Recheck(a.trust(t), time.Now()); len(events) != 1 || events[0].Kind != Left || d.Len() != 0 {
		t.Errorf("expelled: %+v", events)
	}
	back, err := Load(t.Context(), path, DefaultLimits(), a.trust(t), time.Now())
	if err != nil || back.Len() != 0 || back.Refused()[Revoked] != 1 {
		t.Errorf("%d members, refused %v, %v", back.Len(), back.Refused(), err)
	}
	if ask, _ := back.Behind(); ask != (Ask{Epoch: 1, After: 1}) {
		t.Errorf("asks for everything because of one who was expelled: %+v", ask)
	}
}

func FuzzDecodeFile(f *testing.F) {
	trust, now := newAuthority(f, testCollective).trust(f), time.Now()
	made := &SignedRecord{Payload: []byte("{}"), Signature: []byte("s"), Chain: [][]byte{{1}, {2}}}
	frames, err := appendFrame(nil, &Batch{Epoch: 1, After: 5, Revision: 5, Head: 5})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frames)
	if frames, err = appendFrame(frames, &Batch{Epoch: 1, After: 2, Revision: 3, Head: 3, Changes: []Change{{Revision: 3, Signed: made}}}); err != nil {
		f.Fatal(err)
	}
	f.Add(frames)
	f.Fuzz(func(t *testing.T, frames []byte) {
		at, records, err := decodeFile(withSum(frames))
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatal(err)
			}
			return
		}
		d := New(Limits{Members: 2, Bytes: 1 << 20})
		d.restore(t.Context(), at, records, trust, now)
		if _, err := d.Encode(); err != nil {
			t.Fatal(err)
		}
	})
}
