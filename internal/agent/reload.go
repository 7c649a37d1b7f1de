package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/loglevel"
)

// catchHangups returns a channel that delivers SIGHUP. The signal then does not end the process.
func catchHangups() <-chan os.Signal {
	signal.Ignore(syscall.SIGHUP) // it would end the agent, as it ends all other commands
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups
}

// reloadAt reloads the configuration at every hangup, until ctx ends.
func (a *running) reloadAt(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			if _, err := a.Reload(ctx, api.ReloadRequest{}); err != nil {
				a.plan.log.Error("the configuration is not reloaded, and nothing has changed", "err", err)
			}
		}
	}
}

// Reload implements api.Agent. A configuration with an error changes nothing.
func (a *running) Reload(ctx context.Context, r api.ReloadRequest) (api.Reloaded, error) {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	out := api.Reloaded{File: a.plan.file, Applied: []api.SettingChange{}, Waiting: []api.SettingChange{}}
	next, err := config.Load(a.plan.file)
	if errors.Is(err, fs.ErrPermission) { // root has replaced it
		return api.Reloaded{}, fmt.Errorf("%w; if systemd started the agent, systemctl reload dcol lets it read the file", err)
	}
	if err != nil {
		return api.Reloaded{}, err
	}
	if _, err := Prepare(next, a.plan.file, a.plan.version, a.plan.log, a.plan.levels); err != nil {
		return api.Reloaded{}, err
	}
	for _, c := range a.settings.Differences(next) {
		change := api.SettingChange{Key: c.Key, From: c.From, To: c.To, NewOnly: c.NewOnly}
		if c.Reload {
			out.Applied = append(out.Applied, change)
		} else {
			out.Waiting = append(out.Waiting, change)
		}
	}
	if r.DryRun {
		return out, nil
	}
	if err := a.apply(ctx, a.settings.Reloaded(next)); err != nil {
		return api.Reloaded{}, err
	}
	for _, c := range out.Applied {
		a.plan.log.Info("the configuration has changed", "key", c.Key, "from", c.From, "to", c.To)
	}
	for _, c := range out.Waiting {
		a.plan.log.Warn("a changed key of the configuration needs a restart of the agent", "key", c.Key, "in effect", c.From, "in the file", c.To)
	}
	return out, nil
}

// apply makes all parts take over settings. These may differ from those in effect only in the keys that
// config.Reloaded takes over.
func (a *running) apply(ctx context.Context, next *config.Config) error {
	before := a.settings
	// The waypoint goes first: the kernel can refuse its rules.
	if serving := a.serving.Load(); serving != nil && termsDiffer(before, next) {
		if err := serving.Reconfigure(next); err != nil {
			return err
		}
	}
	a.relaying.Change(permitted(next.Waypoint))
	if a.client != nil {
		if err := a.client.Reconfigure(ctx, before.Client, next.Client); err != nil {
			return err
		}
	}
	if before.LogLevel != next.LogLevel {
		level, err := loglevel.Parse(next.LogLevel)
		if err != nil {
			return err
		}
		a.plan.levels.SetAll(level)
	}
	a.settings = next
	return nil
}

// termsDiffer reports whether the waypoint's terms differ between two settings.
func termsDiffer(before, next *config.Config) bool {
	only := *before
	only.Waypoint = next.Waypoint
	return len(before.Differences(&only)) > 0
}

// with runs f with the settings in effect, which do not change meanwhile.
func (a *running) with(f func(*config.Config) error) error {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	return f(a.settings)
}

// inEffect returns the settings in effect.
func (a *running) inEffect() *config.Config {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	return a.settings
}
