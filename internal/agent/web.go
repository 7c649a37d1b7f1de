package agent

import (
	"context"
	"errors"
	"log/slog"

	"github.com/detour-collective/dcol/internal/agent/serving"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/web"
)

// pageKeeper serves the page from the first request for it until it is stopped.
type pageKeeper struct {
	agent    web.Agent
	log      *slog.Logger
	requests chan pageRequest
}

type pageRequest struct {
	api.WebRequest
	reader web.Reader
	answer chan<- pageAnswer
}

type pageAnswer struct {
	api.Web
	err error
}

func newPageKeeper(agent web.Agent, log *slog.Logger) *pageKeeper {
	return &pageKeeper{agent: agent, log: log, requests: make(chan pageRequest)}
}

// page is a page that is being served.
type page struct {
	server *web.Server
	stop   context.CancelFunc
	ended  chan error
}

// run answers requests until ctx ends.
func (k *pageKeeper) run(ctx context.Context) {
	var now *page
	defer func() {
		if now != nil {
			now.end()
		}
	}()
	for {
		var ended chan error
		if now != nil {
			ended = now.ended
		}
		select {
		case <-ctx.Done():
			return
		case err := <-ended:
			k.log.Error("the page is no longer served", "err", err)
			now.stop()
			now = nil
		case r := <-k.requests:
			var a pageAnswer
			now, a.err = k.change(ctx, now, r.Stop)
			if now != nil {
				a.URL = now.server.Link(r.reader)
			}
			r.answer <- a
		}
	}
}

// change starts or stops the page, as a request wants it.
func (k *pageKeeper) change(ctx context.Context, now *page, stop bool) (*page, error) {
	switch {
	case stop && now != nil:
		now.end()
		k.log.Info("the page is no longer served")
		return nil, nil
	case stop || now != nil:
		return now, nil
	}
	server, err := web.New(k.agent, k.log)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	now = &page{server: server, stop: cancel, ended: make(chan error, 1)}
	ended := now.ended
	go func() {
		defer close(ended)
		ended <- server.Run(running)
	}()
	k.log.Info("the page is served to this host")
	return now, nil
}

// end stops the page, and returns when it has ended.
func (p *page) end() {
	p.stop()
	for range p.ended { // ignore the error, because the page was stopped
	}
}

// Web implements api.Agent.
func (a *running) Web(ctx context.Context, r api.WebRequest) (api.Web, error) {
	answer := make(chan pageAnswer, 1)
	select {
	case a.page.requests <- pageRequest{r, web.Reader{Log: api.ByOwner(ctx)}, answer}:
	case <-ctx.Done():
		return api.Web{}, ctx.Err()
	}
	done := <-answer
	return done.Web, done.err
}

// Log implements web.Agent.
func (a *running) Log(_ context.Context, r api.LogRequest) (api.Log, error) {
	if !a.plan.config.Has(config.RoleWaypoint) {
		return api.Log{}, errors.New("this member is not a waypoint, and has no log of others' connections")
	}
	return serving.Log(a.plan.config.Waypoint.Log, r)
}
