package portmap

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"time"
)

// The port on which devices listen (UPnP Device Architecture 2.0, 1.3.2).
const ssdpPort = 1900

var ssdpGroup = netip.AddrFrom4([4]byte{239, 255, 255, 250})

const (
	// searchFor bounds the wait for devices, which are asked to answer within a second.
	searchFor = 2 * time.Second
	// maxNotice bounds the size of a device's answer.
	maxNotice = 2048
	// maxLocations bounds the number of descriptions fetched.
	maxLocations = 4
)

// search returns the URLs of the gateway's descriptions. It also asks the gateway directly, because
// some networks lose multicast. Answers of others are ignored.
func search(ctx context.Context, n Network) ([]*url.URL, error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.Own, 0)))
	if err != nil {
		return nil, fmt.Errorf("search for UPnP devices: %w", err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(searchFor))
	unhook := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	var sent bool
	for _, to := range []netip.Addr{n.Gateway, ssdpGroup} {
		for _, version := range []int{1, 2} {
			request := fmt.Sprintf("M-SEARCH * HTTP/1.1\r\nHOST: %v:%d\r\nMAN: \"ssdp:discover\"\r\nMX: 1\r\n"+
				"ST: urn:schemas-upnp-org:device:InternetGatewayDevice:%d\r\n\r\n", ssdpGroup, ssdpPort, version)
			_, e := conn.WriteToUDPAddrPort([]byte(request), netip.AddrPortFrom(to, ssdpPort))
			sent, err = sent || e == nil, errors.Join(err, e)
		}
	}
	if !sent {
		return nil, fmt.Errorf("search for UPnP devices: %w", err)
	}
	var found []*url.URL
	var buf [maxNotice]byte
	for len(found) < maxLocations {
		size, from, err := conn.ReadFromUDPAddrPort(buf[:])
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, fmt.Errorf("search for UPnP devices: %w", err)
			}
			break
		}
		if from.Addr().Unmap() != n.Gateway {
			continue
		}
		if at, err := parseNotice(buf[:size], n.Gateway); err == nil && !slices.ContainsFunc(found, func(u *url.URL) bool { return *u == *at }) {
			found = append(found, at)
			conn.SetDeadline(time.Now().Add(searchFor / 10)) // for further answers
		}
	}
	if len(found) == 0 {
		return nil, errNoAnswer
	}
	return found, nil
}

// parseNotice returns the URL of a device's description.
func parseNotice(b []byte, gateway netip.Addr) (*url.URL, error) {
	answer, err := http.ReadResponse(bufio.NewReaderSize(bytes.NewReader(b), maxNotice), nil)
	if err != nil {
		return nil, fmt.Errorf("a UPnP device's answer: %w", err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("a UPnP device's answer: %s", answer.Status)
	}
	at, err := url.Parse(answer.Header.Get("Location"))
	if err != nil {
		return nil, fmt.Errorf("a UPnP device's answer: %w", err)
	}
	return at, atGateway(at, gateway)
}

// atGateway rejects URLs that do not point to the gateway. Otherwise the first to answer could make
// us send requests to others.
func atGateway(u *url.URL, gateway netip.Addr) error {
	host, err := netip.ParseAddr(u.Hostname())
	if err != nil || u.Scheme != "http" || host.Unmap() != gateway || u.User != nil {
		return fmt.Errorf("the UPnP device's URL %q is not one of the router %v", u.Redacted(), gateway)
	}
	return nil
}
