package coordinator

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// restore puts the coordinator's directory back as it was, as an operator does with a backup.
func (w *world) restore(backup string) {
	w.t.Helper()
	w.crash()
	if err := os.RemoveAll(w.dir); err != nil {
		w.t.Fatal(err)
	}
	copyDir(w.t, backup, w.dir)
}

func copyDir(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestOlderDirectoryPutBack(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.waypoint("alpha")
	open := w.invite(InviteOptions{})
	w.crash()
	backup := filepath.Join(t.TempDir(), "backup")
	copyDir(t, w.dir, backup)

	w.open()
	w.run()
	open.Coordinators = w.c.addresses.Coordinators()
	beta, mallory := w.host("beta"), w.member("mallory")
	if err := beta.join(open); err != nil {
		t.Fatal(err)
	}
	beta.connect()
	if err := beta.publish(beta.record()); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Expel(t.Context(), "mallory", "floods"); err != nil {
		t.Fatal(err)
	}
	before := w.c.Status().Directory
	hash := w.c.registrar.Message().Hash

	w.restore(backup)
	w.open()
	w.run()
	if problems := strings.Join(w.c.Status().Problems, "\n"); !strings.Contains(problems, "an older copy of the coordinator's directory was restored") {
		t.Errorf("problems: %s", problems)
	}
	if now := w.c.registrar.Message().Hash; now != hash {
		t.Error("what was revoked since is not revoked any more")
	}
	for _, h := range []*host{alpha, beta, mallory} {
		h.welcome.Coordinators = w.c.addresses.Coordinators()
	}
	if err := beta.renew(); err != nil {
		t.Errorf("beta, who joined since: %v", err)
	}
	if all := w.c.Members(); len(all) != 3 || all[1].Name != "beta" || all[1].Subnet != beta.id.Self().Subnet {
		t.Errorf("members: %+v", all)
	}
	if err := mallory.renew(); err == nil {
		t.Error("mallory, who was expelled since, is a member again")
	}
	open.Coordinators = w.c.addresses.Coordinators()
	if err := w.host("gamma").join(open); !errors.Is(err, enrol.TokenUnknown) {
		t.Errorf("with an invitation that was used since: %v", err)
	}

	// This host's own agent has a later revision than the directory now.
	ask, err := directory.Ask{Epoch: before.Epoch, After: before.Revision}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"alpha", "hub"} {
		if _, err := w.c.handle(t.Context(), bus.Request{From: from, Topic: enrol.TopicDirectory, Data: ask}); err != nil {
			t.Fatal(err)
		}
		if from == "alpha" {
			time.Sleep(100 * time.Millisecond)
			if now := w.c.Status().Directory; now == nil || now.Epoch != before.Epoch {
				t.Error("any member can have the directory begin anew")
			}
		}
	}
	eventually(t, "the directory has a new epoch", 30*time.Second, func() bool {
		now := w.c.Status().Directory
		return now != nil && now.Epoch > before.Epoch
	})
	alpha.bus.Close()
	alpha.welcome.BusServers = w.c.addresses.BusServers()
	alpha.connect()
	if _, there := alpha.directory().Get("alpha"); !there {
		t.Error("the directory is lost")
	}
}
