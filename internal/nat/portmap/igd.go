package portmap

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// igd is a UPnP Internet Gateway Device. It supports IPv4 only.
type igd struct {
	network Network
	control *url.URL // of the service
	service string   // its type
	// forever is set if it only opens ports without a time limit.
	forever bool
}

// services lists the types of services that open ports, the preferred first.
var services = []string{
	"urn:schemas-upnp-org:service:WANIPConnection:2",
	"urn:schemas-upnp-org:service:WANIPConnection:1",
	"urn:schemas-upnp-org:service:WANPPPConnection:1",
}

// maxOffers bounds the services of a device that are tried.
const maxOffers = 4

// portTries bounds the external ports that are tried if they are taken.
const portTries = 4

func (d *igd) String() string { return "UPnP" }

func findIGD(ctx context.Context, n Network) (*igd, error) {
	if !n.Gateway.Is4() {
		return nil, errors.New("for IPv4 only")
	}
	locations, err := search(ctx, n)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, at := range locations {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
		if err != nil {
			return nil, err
		}
		status, body, err := document(ctx, n.Own, request)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("HTTP status %d", status)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read %v: %w", at, err))
			continue
		}
		offered, err := parseDescription(body, at, n.Gateway)
		errs = append(errs, err)
		for _, service := range offered {
			d := &igd{network: n, control: service.control, service: service.kind}
			// A device may have several services, only one of them connected.
			_, err := d.externalAddress(ctx)
			if err == nil {
				return d, nil
			}
			errs = append(errs, err)
		}
	}
	return nil, errors.Join(errs...)
}

// offer is a service of a device that opens ports.
type offer struct {
	kind    string
	control *url.URL
}

// parseDescription returns the services in a device's description, the preferred first. It returns
// an error if there is none.
func parseDescription(document []byte, at *url.URL, gateway netip.Addr) ([]offer, error) {
	base := at
	controls := make(map[string][]string) // by type
	var kind, control string
	err := walk(document, func(name, text string) {
		switch name {
		case "URLBase": // of UPnP 1.0
			if u, err := url.Parse(text); err == nil && u.Host != "" {
				base = u
			}
		case "serviceType":
			kind = text
		case "controlURL":
			control = text
		case "service":
			controls[kind] = append(controls[kind], control)
			kind, control = "", ""
		}
	})
	if err != nil {
		return nil, fmt.Errorf("the UPnP device's description: %w", err)
	}
	var offers []offer
	var wrong error
	for _, kind := range services {
		for _, control := range controls[kind] {
			u, err := base.Parse(control)
			if err == nil {
				err = atGateway(u, gateway)
			}
			if err != nil {
				wrong = err
				continue
			}
			if len(offers) < maxOffers {
				offers = append(offers, offer{kind, u})
			}
		}
	}
	if len(offers) == 0 {
		if wrong == nil {
			wrong = errors.New("the UPnP device opens no ports")
		}
		return nil, wrong
	}
	return offers, nil
}

func (d *igd) externalAddress(ctx context.Context) (netip.Addr, error) {
	out, err := call(ctx, d.network.Own, d.control, d.service, "GetExternalIPAddress")
	if err != nil {
		return netip.Addr{}, err
	}
	addr, err := netip.ParseAddr(out["NewExternalIPAddress"])
	if err != nil || !addr.Is4() {
		return netip.Addr{}, fmt.Errorf("the UPnP device has no external address (%.40q): check that it is connected", out["NewExternalIPAddress"])
	}
	return addr, nil
}

func (d *igd) open(ctx context.Context, w Want, proposed uint16) (granted, error) {
	addr, err := d.externalAddress(ctx)
	if err != nil {
		return granted{}, err
	}
	port := proposed
	for try := 1; ; try++ {
		lasts, err := d.add(ctx, w, port)
		var refused *RefusedError
		if errors.As(err, &refused) && (refused.Code == igdConflict || refused.Code == igdOtherMechanism) && try < portTries {
			port = uint16(20000 + rand.IntN(40000)) // mostly below the ports that systems choose
			continue
		}
		if err != nil {
			return granted{}, err
		}
		return granted{external: netip.AddrPortFrom(addr, port), lifetime: lasts}, nil
	}
}

// add opens or renews a port and returns its lifetime. 0 means without limit.
func (d *igd) add(ctx context.Context, w Want, external uint16) (time.Duration, error) {
	for {
		lasts := lifetime
		if d.forever {
			lasts = 0
		}
		_, err := call(ctx, d.network.Own, d.control, d.service, "AddPortMapping",
			argument{"NewRemoteHost", ""},
			argument{"NewExternalPort", strconv.Itoa(int(external))},
			argument{"NewProtocol", strings.ToUpper(string(w.Protocol))},
			argument{"NewInternalPort", strconv.Itoa(int(w.Port))},
			argument{"NewInternalClient", d.network.Own.String()},
			argument{"NewEnabled", "1"},
			argument{"NewPortMappingDescription", "dcol"},
			argument{"NewLeaseDuration", strconv.Itoa(int(lasts / time.Second))})
		var refused *RefusedError
		if errors.As(err, &refused) && refused.Code == igdPermanentOnly && !d.forever {
			d.forever = true
			continue
		}
		return lasts, err
	}
}

func (d *igd) close(ctx context.Context, w Want, external uint16) error {
	_, err := call(ctx, d.network.Own, d.control, d.service, "DeletePortMapping",
		argument{"NewRemoteHost", ""},
		argument{"NewExternalPort", strconv.Itoa(int(external))},
		argument{"NewProtocol", strings.ToUpper(string(w.Protocol))})
	return err
}
